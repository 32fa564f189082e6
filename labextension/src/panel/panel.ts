/** The panel in the left sidebar: the clusters, and the verdicts, ranks and groups of the one that is shown. */

import { SidePanel } from '@jupyterlab/ui-components';
import { AccordionPanel } from '@lumino/widgets';

import { ranksIcon } from '../shell/icons';
import { ClusterList } from './clusterlist';
import { Groups } from './groups';
import { RankTable } from './ranktable';
import { IContext, Section } from './section';
import { VerdictList } from './verdictlist';

/** The share of the height that each section gets. */
const SHARES = new Map<unknown, number>([
  [ClusterList, 2],
  [VerdictList, 4],
  [RankTable, 5],
  [Groups, 3]
]);

export class RanksPanel extends SidePanel {
  constructor(context: IContext) {
    super();
    const { trans } = context;
    this.id = 'jdist-panel';
    this.addClass('jdist-panel');
    this.title.icon = ranksIcon;
    this.title.caption = trans.__('Ranks');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Ranks'));
    this._context = context;
    this._verdict = new VerdictList(context);
    [new ClusterList(context), new RankTable(context), new Groups(context)].forEach(each => this.addWidget(each));
    context.clusters.changed.connect(this._onChanged, this);
    this._share();
    this._onChanged();
  }

  /** Focuses the active row of the table; without a table, the first button. */
  protected onActivateRequest(): void {
    const first = '[role="grid"] [tabindex="0"], .jdist-section button';
    this.node.querySelector<HTMLElement>(first)?.focus();
  }

  /** Shows the section of verdicts only while there are any. */
  private _onChanged(): void {
    const hasVerdict = !!this._context.clusters.current?.verdicts?.length;
    if (hasVerdict === (this._verdict.parent !== null)) {
      return;
    }
    if (hasVerdict) {
      this.insertWidget(1, this._verdict);
    } else {
      this._verdict.parent = null;
    }
    this._share();
  }

  private _share(): void {
    const shares = this.widgets.filter(each => each instanceof Section).map(each => SHARES.get(each.constructor) ?? 1);
    const whole = shares.reduce((sum, each) => sum + each, 0);
    (this.content as AccordionPanel).setRelativeSizes(shares.map(each => each / whole));
  }

  private readonly _context: IContext;
  private readonly _verdict: VerdictList;
}
