/** The output of a run: what all ranks or one of them wrote, the failures, and the state of the run while it goes on. */

import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { TranslationBundle } from '@jupyterlab/translation';
import { PartialJSONObject, UUID } from '@lumino/coreutils';
import { Panel, Widget } from '@lumino/widgets';

import { formatDuration, formatWholeSeconds } from '../format';
import { labelOf, stepOf } from '../remedy';
import { IRemedy, IRunJson } from '../generated/server';
import { IPreferences } from '../tokens';
import { Answers } from './answers';
import { EndFollower } from './endfollower';
import { FailureList } from './failurelist';
import { doneCount, MIME, partsOf, piecesOf, VERSION } from './model';
import { PauseBox } from './pausebox';
import { RankTabs } from './ranktabs';
import { LoadRun, Recovery } from './recovery';
import { TakeRemedy } from './remedyrow';
import { SegmentList } from './segmentlist';
import { ISource } from './segments';
import { VerdictBox } from './verdictbox';

/** The services that a run's output needs. */
export interface IRunServices {
  rendermime: IRenderMimeRegistry;
  trans: TranslationBundle;
  preferences: IPreferences;
  /** Carries out a remedy for the run that the widget shows, and returns what to say about it. */
  takeRemedy: (run: IRunJson, from: Widget, remedy: IRemedy) => Promise<string>;
  /** Resumes the run's paused ranks with a command of `CommandIDs`; without it, there are no buttons. */
  step?: (run: IRunJson, command: string) => Promise<void>;
  /** Requests the run from the server; without it, what an output has missed cannot be brought back. */
  load?: LoadRun;
  /** Shows the metrics of the run below its output. */
  charts?: (run: IRunJson, from: Widget, metrics: PartialJSONObject) => void;
  /** Calls back whenever what the server's events say of a run has changed, until the function returned is called. */
  watch?: (run: () => IRunJson | undefined, changed: () => void) => () => void;
  /** Opens the run's timeline; without it, there is no button. */
  timeline?: (run: IRunJson, from: Widget) => Promise<void>;
}

/** Renders the bundle, again and again while the run goes on; choice, focus and scroll position stay as they are. */
export class RunOutput extends Panel implements IRenderMime.IRenderer {
  constructor(private _services: IRunServices) {
    super();
    this.addClass('jdist-Run');
    const { rendermime, trans } = _services;
    const id = `jdist-run-${UUID.uuid4()}`;
    this.tabs = new RankTabs(id, trans);
    this._segments = new SegmentList(rendermime, trans);
    this._answers = new Answers(trans);
    const take: TakeRemedy = remedy => {
      const run = this._run!;
      const answer = _services.takeRemedy(run, this, remedy);
      return 'beside' in stepOf(remedy, run.state !== 'done') ? this._answers.keep(labelOf(remedy), answer) : answer;
    };
    this._failures = new FailureList(rendermime, take, trans);
    this._verdict = new VerdictBox(take, trans);
    const { step } = _services;
    this._paused = new PauseBox(step && (command => step(this._run!, command)), trans);
    this._body.id = id;
    this._body.addClass('jdist-RunBody');
    this._notices.addClass('jdist-RunNotices');
    this._footer.addClass('jdist-RunFooter');
    this._body.addWidget(this._segments);
    this._end = new EndFollower(this._body.node, this._segments.node);
    const found = [this._paused, this._verdict, this._failures];
    [this.tabs, this._notices, this._body, ...found, this._answers, this._footer].forEach(each => this.addWidget(each));
    this._fillFooter();
    const charts = (run: IRunJson, metrics: PartialJSONObject): void => _services.charts?.(run, this, metrics);
    this._recovery = _services.load && new Recovery(_services.load, reason => this._showLost(reason), charts);
    this._unwatch = _services.watch?.(
      () => this._run,
      () => this._recovery?.hasChanged()
    );
    this.tabs.chosen.connect(() => this._show());
    _services.preferences.changed.connect(this._show, this); // until it is disposed
  }

  readonly tabs: RankTabs;

  /** The run that is shown. */
  get run(): IRunJson | undefined {
    return this._run;
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const run = model.data[MIME] as unknown as IRunJson;
    this._source = { pieces: piecesOf(model.data['text/html']), trusted: model.trusted };
    if (run?.version !== VERSION) {
      return this._showHtml(model);
    }
    const isFirst = !this._run;
    this._run = run;
    if (isFirst && run.lead !== undefined && run.lead !== null) {
      this.tabs.choose(run.lead);
    }
    this._lost = '';
    this._show();
    this._recovery?.drawn(model, run);
  }

  dispose(): void {
    this._end.dispose();
    this._unwatch?.();
    this._recovery?.dispose();
    super.dispose();
  }

  /** What the output has missed cannot be brought back; nothing can be done to its run from here. */
  private _showLost(reason: string): void {
    const { trans } = this._services;
    this._lost = reason || trans.__('an earlier version of jdist wrote this output');
    this._show();
  }

  private _show(): void {
    const run = this._run;
    if (!run) {
      return;
    }
    const { maxRankTabs, maxRankLines, maxOutputLines } = this._services.preferences.values;
    const parts = partsOf(run);
    if (this.tabs.choice !== 'all' && !parts.some(part => part.rank === this.tabs.choice)) {
      this.tabs.choose('all');
    }
    this.tabs.show_(parts, maxRankTabs);
    this._showNotices(run);
    const lines = this._segments.show_(run.segments ?? [], this.tabs.choice, this._source, maxRankLines);
    const isLong = lines > maxOutputLines;
    this._body.toggleClass('jdist-mod-long', isLong);
    this._end.update();
    this._failures.show_(run, this.tabs.choice, this._source);
    this._label(parts.length > 1, isLong);
    this._paused.show_(run);
    this._paused.setHidden(this._paused.isHidden || !!this._lost);
    this._verdict.show_(run.verdict, run.state !== 'done' && !this._lost);
    this._placeVerdict(!!run.verdict?.follows_failures);
    this._showFooter(run, parts.length);
  }

  /** The first cause stands on top: the verdict, or a failure that has led to it. */
  private _placeVerdict(isBelow: boolean): void {
    const [verdict, failures] = [this._verdict, this._failures].map(each => this.widgets.indexOf(each));
    if (verdict > failures !== isBelow) {
      this.insertWidget(failures, this._verdict);
    }
  }

  /** Makes the body the panel of the tabs, and lets the keyboard reach it where it scrolls. */
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

  private _showNotices(run: IRunJson): void {
    const key = JSON.stringify(run.notices);
    if (key === this._shownNotices) {
      return;
    }
    this._shownNotices = key;
    const lines = (run.notices ?? []).map(text => {
      const line = document.createElement('div');
      line.textContent = text;
      return line;
    });
    this._notices.node.replaceChildren(...lines);
    this._notices.setHidden(!lines.length);
  }

  private _fillFooter(): void {
    const { timeline, trans } = this._services;
    this._footer.node.append(this._summary);
    if (timeline) {
      const button = document.createElement('button');
      button.type = 'button';
      button.className = 'jp-Button jp-mod-styled jp-mod-minimal jdist-RunTimeline';
      button.textContent = trans.__('Timeline');
      button.title = trans.__('The torch.distributed calls of this run by rank, and which rank waited for which');
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

  private _showFooter(run: IRunJson, count: number): void {
    const { trans } = this._services;
    const ranks = trans._n('%1 rank', '%1 ranks', count);
    const texts = [trans.__('run %1', run.run)];
    if (this._lost) {
      texts.push(ranks, trans.__('what happened afterwards is unknown: %1', this._lost));
    } else if (run.state === 'waiting') {
      texts.push(trans.__('waiting'), ranks);
    } else if (run.state === 'running') {
      texts.push(trans.__('%1 of %2 done', doneCount(run), ranks), formatWholeSeconds(run.seconds));
    } else {
      texts.push(ranks, formatDuration(run.seconds));
    }
    if (run.frames) {
      texts.push(run.frames);
    }
    const text = texts.join(' · ');
    if (this._summary.textContent !== text) {
      this._summary.textContent = text;
    }
  }

  /** A bundle of another version is shown by its HTML. */
  private async _showHtml(model: IRenderMime.IMimeModel): Promise<void> {
    this.widgets.forEach(widget => widget.hide());
    this._html?.dispose();
    const renderer = this._services.rendermime.createRenderer('text/html');
    this._html = renderer;
    this.addWidget(renderer);
    await renderer.renderModel(new MimeModel({ data: model.data, metadata: model.metadata, trusted: model.trusted }));
  }

  private _run?: IRunJson;
  private _source: ISource = { pieces: [], trusted: false };
  private _shownNotices = '';
  private _lost = '';
  private readonly _recovery?: Recovery;
  private readonly _unwatch?: () => void;
  private _html?: Widget;
  private readonly _segments: SegmentList;
  private readonly _answers: Answers;
  private readonly _end: EndFollower;
  private readonly _failures: FailureList;
  private readonly _verdict: VerdictBox;
  private readonly _paused: PauseBox;
  private readonly _body = new Panel();
  private readonly _notices = new Widget();
  private readonly _footer = new Widget();
  private readonly _summary = document.createElement('span');
  private readonly _failed = document.createElement('span');
}
