/** The panel in the left sidebar: the clusters, and the verdicts, ranks and more of the one that is shown. */

import { SidePanel } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { AccordionPanel } from '@lumino/widgets';

import { isPaused } from '../paused';
import { ranksIcon } from '../shell/icons';
import { panelCaption } from '../shell/names';
import { ClusterList } from './clusterlist';
import { Groups } from './groups';
import { RankTable } from './ranks/ranktable';
import { Resources } from './resources/resources';
import { ResourceView } from './resources/view';
import { IContext, Section } from './section';
import { StackTree } from './stacks';
import { Variables } from './variables/variables';
import { VerdictList } from './verdictlist';

/** How the sections share the height that those of `MOST` leave. */
const SHARES = new Map<unknown, number>([
  [StackTree, 4],
  [RankTable, 5],
  [Groups, 3],
  [Variables, 5],
  [Resources, 6]
]);
/** The sections that are as high as what they show, and the largest share of each. */
const MOST = new Map<unknown, number>([
  [ClusterList, 0.2],
  [VerdictList, 0.55]
]);
/** The same for groups while there are none. */
const NO_GROUPS = 0.08;
/** Pixels of the table of ranks with its filter, its head and two rows, for which groups give way. */
const LEAST_TABLE = 120;

export class RanksPanel extends SidePanel {
  constructor(context: IContext, view: ResourceView) {
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
    this._resources = new Resources(context, view);
    const sections = [new ClusterList(context), new RankTable(context), new Groups(context)];
    const collapsed = [new Variables(context), this._resources]; // the ranks are asked only once it is opened
    [...sections, ...collapsed].forEach(each => this.addWidget(each));
    const content = this.content as AccordionPanel;
    collapsed.forEach(each => content.collapse(this.widgets.indexOf(each)));
    // One that was collapsed had no share of the height.
    content.expansionToggled.connect(() => requestAnimationFrame(() => this._share()));
    context.clusters.changed.connect(this._onChanged, this);
    this._share();
    this._onChanged();
  }

  /** Expands the section of resources, and focuses it once the panel is activated. */
  showResources(): void {
    const content = this.content as AccordionPanel;
    content.expand(this.widgets.indexOf(this._resources));
    this._isResourcesDue = true;
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    if (this._isShareDue) {
      requestAnimationFrame(() => this._share());
    }
  }

  /** Focuses the active row of the table; without a table, the first button. */
  protected onActivateRequest(): void {
    if (this._isResourcesDue) {
      this._isResourcesDue = false;
      this._resources.focus();
      return;
    }
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
      // A verdict is as high as its text, once that is drawn.
      void (this._verdict.renderPromise ?? Promise.resolve()).then(() => requestAnimationFrame(() => this._share()));
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

  /** Sections that are not drawn yet get their largest share; one that is collapsed gets none. */
  private _share(): void {
    const sections = this.widgets.filter((each): each is Section => each instanceof Section);
    const open = sections.filter(each => !each.isHidden);
    const whole = open.reduce((sum, each) => sum + each.node.clientHeight, 0);
    this._isShareDue = !whole;
    const fixed = new Map(open.filter(each => this._most(each)).map(each => [each, this._fixedShare(each, whole)]));
    const others = open.filter(each => !fixed.has(each));
    const rest = 1 - [...fixed.values()].reduce((sum, each) => sum + each, 0);
    const weight = (each: Section): number => SHARES.get(each.constructor) ?? 1;
    const all = others.reduce((sum, each) => sum + weight(each), 0);
    const shareOf = (each: Section): number =>
      each.isHidden ? 0 : (fixed.get(each) ?? (Math.max(0, rest) * weight(each)) / all);
    const shares = new Map(sections.map(each => [each, shareOf(each)]));
    const [table, groups] = [RankTable, Groups].map(kind => open.find(each => each instanceof kind));
    if (table && groups && whole) {
      const taken = Math.max(0, Math.min(shares.get(groups)!, LEAST_TABLE / whole - shares.get(table)!));
      shares.set(groups, shares.get(groups)! - taken).set(table, shares.get(table)! + taken);
    }
    (this.content as AccordionPanel).setRelativeSizes(sections.map(each => shares.get(each)!));
  }

  private _fixedShare(section: Section, whole: number): number {
    const most = this._most(section);
    return whole ? Math.min(most, section.neededHeight / whole) : most;
  }

  /** The largest share of a section that is as high as what it shows; 0 if it shares what the others leave. */
  private _most(section: Section): number {
    const cluster = this._context.clusters.current;
    const hasGroups = !!(cluster?.mesh || cluster?.groups?.length || cluster?.cell_groups?.length);
    return section instanceof Groups && !hasGroups ? NO_GROUPS : (MOST.get(section.constructor) ?? 0);
  }

  private _isShareDue = true;
  private readonly _context: IContext;
  private readonly _verdict: VerdictList;
  private readonly _stacks: StackTree;
  private readonly _resources: Resources;
  private _isResourcesDue = false;
}
