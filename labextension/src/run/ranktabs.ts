/** The ranks of a run as tabs, to choose whose output is shown; many ranks are a strip of small tabs. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { formatDuration } from '../format';
import { isFailure, outcomeState } from '../states';
import { failedFirst, IPart, RankChoice } from './model';

/** A tablist: the arrow keys, Home and End move the focus, and the output of the focused rank is shown. */
export class RankTabs extends Widget {
  constructor(
    private _panel: string,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-RunTabs');
    all.set(this.node, this);
    this.node.setAttribute('role', 'tablist');
    this.node.setAttribute('aria-label', this._trans.__('Output by rank'));
    this.node.addEventListener('click', event => {
      const tab = (event.target as HTMLElement).closest<HTMLElement>('[role=tab]');
      if (tab) {
        this.choose(choiceOf(tab));
      }
    });
  }

  /** The tabs that this node belongs to. */
  static of(node: Element): RankTabs | undefined {
    return all.get(node);
  }

  /** The user has chosen another rank. */
  get chosen(): ISignal<this, RankChoice> {
    return this._chosen;
  }

  get choice(): RankChoice {
    return this._choice;
  }

  choose(choice: RankChoice): void {
    if (choice !== this._choice) {
      this._choice = choice;
      this._mark();
      this._chosen.emit(choice);
    }
  }

  /** The id of the chosen tab. */
  get label(): string {
    return this._id(this._choice);
  }

  /** Shows the ranks as they are now, as a strip if they are more than `maxTabs`; choice and focus stay as they are. */
  show_(parts: IPart[], maxTabs: number): void {
    const isStrip = parts.length > maxTabs;
    this.toggleClass('jdist-mod-strip', isStrip);
    this.node.hidden = parts.length < 2;
    const failed = parts.filter(part => isFailure(part.state)).length;
    const first = failed ? this._trans._n('All · %1 failed', 'All · %1 failed', failed) : this._trans.__('All');
    const tabs = [this._tab('all', first, first)];
    for (const part of isStrip ? parts : failedFirst(parts)) {
      const time = isStrip || part.seconds === undefined ? '' : ` · ${formatDuration(part.seconds)}`;
      const { sign, label, tone } = outcomeState(part.state, this._trans);
      const word = isStrip || part.state === 'value' ? '' : ` ${label}`;
      const tab = this._tab(part.rank, `${part.rank}${word}${time}`, this._describe(part, label), sign);
      tab.className = `jdist-mod-${tone}`;
      tabs.push(tab);
    }
    this._arrange(tabs);
    this._mark();
  }

  /** Handles a key; returns whether it has a meaning here. */
  onKey(event: KeyboardEvent): boolean {
    const tabs = [...this.node.querySelectorAll<HTMLElement>('[role=tab]')];
    const at = tabs.indexOf(document.activeElement as HTMLElement);
    const to = at < 0 ? undefined : tabs[this._target(event.key, at, tabs)];
    if (!to || event.ctrlKey || event.metaKey || event.altKey) {
      return false;
    }
    event.preventDefault();
    to.focus();
    this.choose(choiceOf(to));
    return true;
  }

  private _target(key: string, at: number, tabs: HTMLElement[]): number {
    switch (key) {
      case 'ArrowRight':
        return (at + 1) % tabs.length;
      case 'ArrowLeft':
        return (at - 1 + tabs.length) % tabs.length;
      case 'Home':
        return 0;
      case 'End':
        return tabs.length - 1;
      case 'ArrowDown':
      case 'ArrowUp':
        return nextRow(tabs, at, key === 'ArrowDown' ? 1 : -1);
    }
    return -1;
  }

  /** `rank 2, failed after 1.5 s`. */
  private _describe({ rank, seconds }: IPart, state: string): string {
    return seconds === undefined
      ? this._trans.__('rank %1, %2', rank, state)
      : this._trans.__('rank %1, %2 after %3', rank, state, formatDuration(seconds));
  }

  private _tab(choice: RankChoice, text: string, label: string, sign = ''): HTMLElement {
    const id = this._id(choice);
    let tab = this._tabs.get(id);
    if (!tab) {
      tab = document.createElement('button');
      tab.id = id;
      tab.type = 'button';
      tab.dataset.rank = String(choice);
      tab.setAttribute('role', 'tab');
      tab.setAttribute('aria-controls', this._panel);
      this._tabs.set(id, tab);
    }
    const shown = sign ? `${sign} ${text}` : text;
    if (tab.textContent !== shown) {
      tab.textContent = shown;
    }
    if (tab.title !== label) {
      tab.title = label;
      tab.setAttribute('aria-label', label);
    }
    return tab;
  }

  /** Moves only the tabs that are in the wrong place, because an element that is moved loses the focus. */
  private _arrange(tabs: HTMLElement[]): void {
    const focused = document.activeElement;
    tabs.forEach((tab, i) => {
      if (this.node.children[i] !== tab) {
        this.node.insertBefore(tab, this.node.children[i] ?? null);
      }
    });
    while (this.node.children.length > tabs.length) {
      this.node.lastElementChild!.remove();
    }
    if (focused instanceof HTMLElement && focused !== document.activeElement && this.node.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
  }

  private _mark(): void {
    for (const tab of this.node.querySelectorAll<HTMLElement>('[role=tab]')) {
      const isChosen = choiceOf(tab) === this._choice;
      tab.setAttribute('aria-selected', String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
    }
  }

  private _id(choice: RankChoice): string {
    return `${this._panel}-${choice}`;
  }

  private _choice: RankChoice = 'all';
  private _tabs = new Map<string, HTMLButtonElement>();
  private _chosen = new Signal<this, RankChoice>(this);
}

const all = new WeakMap<Element, RankTabs>();

function choiceOf(tab: HTMLElement): RankChoice {
  return tab.dataset.rank === 'all' ? 'all' : Number(tab.dataset.rank);
}

/** The nearest tab in the row above or below; the same tab if there is no such row. */
function nextRow(tabs: HTMLElement[], at: number, step: 1 | -1): number {
  const { offsetTop, offsetLeft } = tabs[at];
  let i = at;
  while (tabs[i]?.offsetTop === offsetTop) {
    i += step;
  }
  if (!tabs[i]) {
    return at;
  }
  const row = tabs[i].offsetTop;
  let best = i;
  for (; tabs[i]?.offsetTop === row; i += step) {
    if (Math.abs(tabs[i].offsetLeft - offsetLeft) < Math.abs(tabs[best].offsetLeft - offsetLeft)) {
      best = i;
    }
  }
  return best;
}
