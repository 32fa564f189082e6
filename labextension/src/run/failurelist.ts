/** The failures of a run: a box for each of them, causes before their effects, with foldable tracebacks. */

import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { TranslationBundle } from '@jupyterlab/translation';
import { Panel, PanelLayout, Widget } from '@lumino/widgets';

import { formatRanks, includesRank, parseRanks } from '../format';
import { IFailureJson, IRunJson } from '../generated/server';
import { RankChoice } from './model';
import { remedyRow, TakeRemedy } from './remedyrow';
import { renderHtml } from './segmentlist';
import { htmlOf, ISource } from './segments';

/** The failures of all ranks, or of one of them. */
export class FailureList extends Panel {
  constructor(
    private _rendermime: IRenderMimeRegistry,
    private _take: TakeRemedy,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-RunFailures');
  }

  /** Shows the failures of the run; nothing is drawn again if nothing has changed. */
  show_(run: IRunJson, choice: RankChoice, source: ISource): void {
    const seen = (run.failures ?? []).filter(each => choice === 'all' || includesRank(each.ranks, choice));
    const found = seen.map(each => ({ ...each, html: htmlOf(source, each.traceback) }));
    const more = choice === 'all' ? (run.more_failures ?? 0) : 0;
    const key = JSON.stringify([found, more, source.trusted]);
    if (key === this._key) {
      return;
    }
    this._key = key;
    [...this.widgets].forEach(widget => widget.dispose());
    const box = (each: (typeof found)[number]): Widget => this._box(each, each.html, each === found[0], source.trusted);
    found.filter(each => !each.is_echo).forEach(each => this.addWidget(box(each)));
    const echoes = found.filter(each => each.is_echo);
    if (echoes.length) {
      this.addWidget(this._folded(echoes, echoes.map(box)));
    }
    if (more) {
      const note = new Widget();
      note.addClass('jdist-RunGap');
      note.node.textContent = this._trans._n(
        '… %1 more cause; run.outcomes has them by rank',
        '… %1 more causes; run.outcomes has them by rank',
        more
      );
      this.addWidget(note);
    }
  }

  /** One line for the ranks that failed only because another had; it opens to show how they did. */
  private _folded(echoes: IFailureJson[], boxes: Widget[]): Widget {
    const folded = new Widget({ node: document.createElement('details') });
    folded.addClass('jdist-RunEchoes');
    const summary = new Widget({ node: document.createElement('summary') });
    const ranks = echoes.flatMap(each => parseRanks(each.ranks));
    summary.node.textContent = this._trans._n(
      'rank %2 failed because of the first failure',
      'ranks %2 failed because of the first failure',
      ranks.length,
      formatRanks(ranks)
    );
    const layout = new PanelLayout();
    folded.layout = layout;
    [summary, ...boxes].forEach(widget => layout.addWidget(widget));
    return folded;
  }

  private _box(failing: IFailureJson, html: string, isFirst: boolean, trusted: boolean): Widget {
    const box = new Panel();
    box.addClass('jdist-RunFailure');
    box.toggleClass('jdist-mod-echo', !!failing.is_echo);
    const head = new Widget();
    const line = document.createElement('strong');
    line.textContent = failing.headline;
    head.node.append(line);
    if (failing.place) {
      const place = document.createElement('code');
      place.textContent = failing.place;
      head.node.append(document.createElement('br'), place);
    }
    (failing.remedies ?? []).forEach(remedy => head.node.append(remedyRow(remedy, this._take, this._trans)));
    box.addWidget(head);
    if (html) {
      box.addWidget(this._traceback(html, isFirst && !!failing.stands_open, trusted));
    }
    return box;
  }

  /** A traceback whose text is rendered when it is unfolded for the first time. */
  private _traceback(html: string, isOpen: boolean, trusted: boolean): Widget {
    const holder = new Panel();
    holder.addClass('jdist-RunTraceback');
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jdist-RunFold';
    const head = new Widget({ node: button });
    holder.addWidget(head);
    const toggle = (open: boolean): void => {
      button.setAttribute('aria-expanded', String(open));
      button.textContent = `${open ? '▾' : '▸'} ${this._trans.__('traceback')}`;
      if (open && holder.widgets.length === 1) {
        holder.addWidget(renderHtml(this._rendermime, html, trusted));
      }
      holder.widgets.slice(1).forEach(widget => widget.setHidden(!open));
    };
    button.addEventListener('click', () => toggle(button.getAttribute('aria-expanded') !== 'true'));
    toggle(isOpen);
    return holder;
  }

  private _key = '';
}
