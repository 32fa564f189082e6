/** The panel in the left sidebar: the clusters, and the verdicts, ranks and groups of the one that is shown. */

import { SidePanel } from '@jupyterlab/ui-components';
import { AccordionPanel } from '@lumino/widgets';

import { isPaused } from '../paused';
import { ranksIcon } from '../shell/icons';
import { panelCaption } from '../shell/names';
import { ClusterList } from './clusterlist';
import { Groups } from './groups';
import { RankTable } from './ranks/ranktable';
import { IContext, Section } from './section';
import { StackTree } from './stacks';
import { VerdictList } from './verdictlist';

/** The share of the height that each section gets. */
const SHARES = new Map<unknown, number>([
  [ClusterList, 2],
  [VerdictList, 4],
  [StackTree, 4],
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
    this.title.caption = panelCaption(trans);
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', panelCaption(trans));
    this._context = context;
    this._verdict = new VerdictList(context);
    this._stacks = new StackTree(context);
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

  /** Shows the sections of verdicts and of stacks only while there are any. */
  private _onChanged(): void {
    const cluster = this._context.clusters.current;
    const hasChanged = [
      this._show(this._verdict, !!cluster?.verdicts?.length),
      this._show(this._stacks, isPaused(cluster))
    ];
    if (hasChanged.includes(true)) {
      this._share();
    }
  }

  /** Shows a section below the list of clusters, or hides it; whether that has changed anything. */
  private _show(section: Section, isShown: boolean): boolean {
    if (isShown === (section.parent !== null)) {
      return false;
    }
    if (isShown) {
      this.insertWidget(1, section);
    } else {
      section.parent = null;
    }
    return true;
  }

  private _share(): void {
    const shares = this.widgets.filter(each => each instanceof Section).map(each => SHARES.get(each.constructor) ?? 1);
    const whole = shares.reduce((sum, each) => sum + each, 0);
    (this.content as AccordionPanel).setRelativeSizes(shares.map(each => each / whole));
  }

  private readonly _context: IContext;
  private readonly _verdict: VerdictList;
  private readonly _stacks: StackTree;
}
