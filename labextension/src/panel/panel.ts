/** The panel at the left: clusters, and of the one that is looked at its verdict, its ranks and its groups. */

import { SidePanel } from '@jupyterlab/ui-components';
import { AccordionPanel } from '@lumino/widgets';

import { ranksIcon } from '../icons';
import { ClusterList } from './clusterlist';
import { Groups } from './groups';
import { RankTable } from './ranktable';
import { IContext, Section } from './section';
import { Verdicts } from './verdict';

/** How much of the height each gets. */
const SHARES = { clusters: 2, verdict: 4, ranks: 5, groups: 3 };

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
    this._verdict = new Verdicts(context);
    [new ClusterList(context), new RankTable(context), new Groups(context)].forEach(each => this.addWidget(each));
    context.clusters.changed.connect(this._onChanged, this);
    this._share();
    this._onChanged();
  }

  /** Puts the focus where the arrows go from rank to rank, or on the first thing there is. */
  protected onActivateRequest(): void {
    const first = '[role="grid"] [tabindex="0"], .jdist-section button';
    this.node.querySelector<HTMLElement>(first)?.focus();
  }

  /** The verdict is there while there is one. */
  private _onChanged(): void {
    const isJudged = !!this._context.clusters.current?.verdicts?.length;
    if (isJudged === (this._verdict.parent !== null)) {
      return;
    }
    if (isJudged) {
      this.insertWidget(1, this._verdict);
    } else {
      this._verdict.parent = null;
    }
    this._share();
  }

  private _share(): void {
    const sections = this.widgets.filter((each): each is Section => each instanceof Section);
    const shares = sections.map(each =>
      each instanceof ClusterList
        ? SHARES.clusters
        : each instanceof Verdicts
          ? SHARES.verdict
          : each instanceof RankTable
            ? SHARES.ranks
            : SHARES.groups
    );
    const whole = shares.reduce((sum, each) => sum + each, 0);
    (this.content as AccordionPanel).setRelativeSizes(shares.map(each => each / whole));
  }

  private readonly _context: IContext;
  private readonly _verdict: Verdicts;
}
