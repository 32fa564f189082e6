/** The output of a run: what all ranks wrote or one did, what went wrong, and how the run stands; live while it runs. */

import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { TranslationBundle } from '@jupyterlab/translation';
import { UUID } from '@lumino/coreutils';
import { Panel, Widget } from '@lumino/widgets';

import { FailureList } from './failures';
import { doneOf, IRun, MIME, partsOf, VERSION } from './model';
import { ISource, SegmentList } from './segments';
import { RankTabs } from './tabs';
import { Go, VerdictBox } from './verdict';
import { duration } from './words';

/** Lines beyond which the output scrolls by itself. */
const LONG = 60;
/** Pixels from the end within which a reader is at the end. */
const NEAR = 24;

/** What a run's output needs from around it. */
export interface ISurroundings {
  rendermime: IRenderMimeRegistry;
  trans: TranslationBundle;
  /** Goes a way out of a hang, for the run that the widget shows. */
  go: (run: IRun, from: Widget, command: string) => ReturnType<Go>;
  /** Opens the run's timeline; none, no button. */
  timeline?: (run: IRun, from: Widget) => Promise<void>;
}

/** Draws the bundle; called again and again while the run goes on, it keeps what is chosen, focused and scrolled to. */
export class RunOutput extends Panel implements IRenderMime.IRenderer {
  constructor(private _around: ISurroundings) {
    super();
    this.addClass('jdist-Run');
    const { rendermime, trans } = _around;
    const id = `jdist-run-${UUID.uuid4()}`;
    this.tabs = new RankTabs(id, trans);
    this._segments = new SegmentList(rendermime, trans);
    this._failures = new FailureList(rendermime, trans);
    this._verdict = new VerdictBox(command => _around.go(this._run!, this, command), trans);
    this._body.id = id;
    this._body.addClass('jdist-RunBody');
    this._notices.addClass('jdist-RunNotices');
    this._footer.addClass('jdist-RunFooter');
    this._body.addWidget(this._segments);
    this._body.addWidget(this._failures);
    [this.tabs, this._notices, this._body, this._verdict, this._footer].forEach(widget => this.addWidget(widget));
    this._fillFooter();
    this.tabs.chosen.connect(() => this._show(true));
  }

  readonly tabs: RankTabs;

  /** The run that is shown. */
  get run(): IRun | undefined {
    return this._run;
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const run = model.data[MIME] as unknown as IRun;
    this._source = { html: model.data['text/html'], trusted: model.trusted };
    if (run?.version !== VERSION) {
      return this._showOld(model);
    }
    const isFirst = !this._run;
    this._run = run;
    if (isFirst && run.lead !== undefined && run.lead !== null) {
      this.tabs.choose(run.lead);
    }
    this._show(false);
  }

  private _show(isOther: boolean): void {
    const run = this._run;
    if (!run) {
      return;
    }
    const parts = partsOf(run);
    if (this.tabs.choice !== 'all' && !parts.some(part => part.rank === this.tabs.choice)) {
      this.tabs.choose('all');
    }
    this.tabs.show_(parts);
    this._showNotices(run);
    const node = this._body.node;
    const top = node.scrollTop;
    const isAtEnd = top + node.clientHeight >= node.scrollHeight - NEAR;
    const lines = this._segments.show_(run.segments ?? [], this.tabs.choice, this._source);
    this._failures.show_(run, this.tabs.choice, this._source);
    this._body.toggleClass('jdist-mod-long', lines > LONG);
    this._label(parts.length > 1, lines > LONG);
    if (lines > LONG && run.state !== 'done' && (isAtEnd || isOther)) {
      node.scrollTop = node.scrollHeight;
    } else if (!isOther && node.scrollTop !== top) {
      node.scrollTop = top;
    }
    this._verdict.show_(run.verdict);
    this._showFooter(run, parts.length);
  }

  /** A panel of tabs if there are any, and for the keyboard where it scrolls. */
  private _label(hasTabs: boolean, scrolls: boolean): void {
    const { node } = this._body;
    if (hasTabs) {
      node.setAttribute('role', 'tabpanel');
      node.setAttribute('aria-labelledby', this.tabs.label);
    }
    if (scrolls) {
      node.tabIndex = 0;
    }
  }

  private _showNotices(run: IRun): void {
    const key = JSON.stringify([run.title, run.notices]);
    if (key === this._said) {
      return;
    }
    this._said = key;
    const lines = (run.notices ?? []).map(text => {
      const line = document.createElement('div');
      line.textContent = text;
      return line;
    });
    const title = document.createElement('strong');
    title.textContent = run.title ?? '';
    this._notices.node.replaceChildren(...(run.title ? [title] : []), ...lines);
    this._notices.setHidden(!run.title && !lines.length);
  }

  private _fillFooter(): void {
    const { timeline, trans } = this._around;
    this._footer.node.append(this._summary);
    if (timeline) {
      const button = document.createElement('button');
      button.type = 'button';
      button.className = 'jp-Button jp-mod-styled jp-mod-minimal jdist-RunTimeline';
      button.textContent = trans.__('Timeline');
      button.title = trans.__('Who waited for whom: the calls of torch.distributed in this run, by rank');
      button.addEventListener('click', async () => {
        this._failed.textContent = '';
        try {
          await timeline(this._run!, this);
        } catch (error) {
          this._failed.textContent = error instanceof Error ? error.message : String(error);
        }
      });
      this._failed.setAttribute('role', 'status');
      this._footer.node.append(button, this._failed);
    }
  }

  private _showFooter(run: IRun, count: number): void {
    const { trans } = this._around;
    const ranks = trans._n('%1 rank', '%1 ranks', count);
    const words = [trans.__('run %1', run.run)];
    if (run.state === 'waiting') {
      words.push(trans.__('waiting'), ranks);
    } else if (run.state === 'running') {
      words.push(trans.__('%1 of %2 done', doneOf(run), ranks), duration(Math.floor(run.seconds)));
    } else {
      words.push(ranks, duration(run.seconds));
    }
    const text = words.join(' · ');
    if (this._summary.textContent !== text) {
      this._summary.textContent = text;
    }
  }

  /** Written by another version: its HTML says the same. */
  private async _showOld(model: IRenderMime.IMimeModel): Promise<void> {
    this.widgets.forEach(widget => widget.hide());
    this._old?.dispose();
    const renderer = this._around.rendermime.createRenderer('text/html');
    this._old = renderer;
    this.addWidget(renderer);
    await renderer.renderModel(new MimeModel({ data: model.data, metadata: model.metadata, trusted: model.trusted }));
  }

  private _run?: IRun;
  private _source: ISource = { html: '', trusted: false };
  private _said = '';
  private _old?: Widget;
  private readonly _segments: SegmentList;
  private readonly _failures: FailureList;
  private readonly _verdict: VerdictBox;
  private readonly _body = new Panel();
  private readonly _notices = new Widget();
  private readonly _footer = new Widget();
  private readonly _summary = document.createElement('span');
  private readonly _failed = document.createElement('span');
}
