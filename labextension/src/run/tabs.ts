/** The ranks of a run to choose from: tabs for a few, a strip of small cells for many. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { failedFirst, IPart, isCause } from './model';
import { duration, partWords, SIGNS } from './words';

/** What is looked at: one rank, or all. */
export type Choice = number | 'all';

/** More ranks than this stand in a strip of cells. */
const MOST_TABS = 8;

/** A tablist: arrow keys, Home and End go through it, and what has the focus is shown. */
export class RankTabs extends Widget {
  constructor(
    private _panel: string,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-RunTabs');
    all.set(this.node, this);
    this.node.setAttribute('role', 'tablist');
    this.node.setAttribute('aria-label', _trans.__('Output by rank'));
    this.node.addEventListener('click', event => {
      const tab = (event.target as HTMLElement).closest<HTMLElement>('[role=tab]');
      if (tab) {
        this.choose(choiceOf(tab));
      }
    });
  }

  /** The one whose node this is. */
  static of(node: Element): RankTabs | undefined {
    return all.get(node);
  }

  /** Another one is looked at. */
  get chosen(): ISignal<this, Choice> {
    return this._chosen;
  }

  get choice(): Choice {
    return this._choice;
  }

  choose(choice: Choice): void {
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

  /** Shows the ranks as they are now; what is chosen and what has the focus stays. */
  show_(parts: IPart[]): void {
    const isStrip = parts.length > MOST_TABS;
    this.toggleClass('jdist-mod-strip', isStrip);
    this.node.hidden = parts.length < 2;
    const failed = parts.filter(part => isCause(part.state)).length;
    const first = failed ? this._trans._n('All · %1 failed', 'All · %1 failed', failed) : this._trans.__('All');
    const tabs = [this._tab('all', first, first)];
    for (const part of isStrip ? parts : failedFirst(parts)) {
      const time = isStrip || part.seconds === undefined ? '' : ` · ${duration(part.seconds)}`;
      const tab = this._tab(part.rank, `${part.rank}${time}`, partWords(part, this._trans), SIGNS[part.state]);
      tab.dataset.state = part.state;
      tabs.push(tab);
    }
    this._arrange(tabs);
    this._mark();
  }

  /** Whether the key meant something here. */
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

  private _tab(choice: Choice, text: string, words: string, sign = ''): HTMLElement {
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
    if (tab.title !== words) {
      tab.title = words;
      tab.setAttribute('aria-label', words);
    }
    return tab;
  }

  /** Moves only what is not where it should be: an element that is moved loses the focus. */
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

  private _id(choice: Choice): string {
    return `${this._panel}-${choice}`;
  }

  private _choice: Choice = 'all';
  private _tabs = new Map<string, HTMLButtonElement>();
  private _chosen = new Signal<this, Choice>(this);
}

const all = new WeakMap<Element, RankTabs>();

function choiceOf(tab: HTMLElement): Choice {
  return tab.dataset.rank === 'all' ? 'all' : Number(tab.dataset.rank);
}

/** The one in the next row that is nearest; the same if there is no such row. */
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
