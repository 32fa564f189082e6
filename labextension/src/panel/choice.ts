/** The ranks that are chosen, and how the table shows them: what the parts of the panel share. */

import { ISignal, Signal } from '@lumino/signaling';

import { IClusters } from '../tokens';

/** How the table of ranks is shown. */
export interface IView {
  sort: string;
  isDown: boolean;
  isByNode: boolean;
  filter: string;
}

export class Choice {
  constructor(clusters: IClusters) {
    clusters.changed.connect(() => {
      const current = clusters.current?.name ?? '';
      if (current !== this._cluster) {
        this._cluster = current;
        this.choose([]);
      }
      const size = clusters.current?.world_size ?? Infinity;
      if (this.ranks.some(rank => rank >= size)) {
        this.choose(this.ranks.filter(rank => rank < size)); // the world has become smaller
      }
    });
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Of the cluster that is looked at, in order; empty: none in particular. */
  get ranks(): number[] {
    return [...this._ranks].sort((a, b) => a - b);
  }

  has(rank: number): boolean {
    return this._ranks.has(rank);
  }

  choose(ranks: Iterable<number>): void {
    this._ranks = new Set(ranks);
    this._changed.emit();
  }

  toggle(rank: number): void {
    if (!this._ranks.delete(rank)) {
      this._ranks.add(rank);
    }
    this._changed.emit();
  }

  get view(): IView {
    return this._view;
  }

  show(change: Partial<IView>): void {
    this._view = { ...this._view, ...change };
    this._changed.emit();
  }

  private _cluster = '';
  private _ranks = new Set<number>();
  private _view: IView = { sort: 'rank', isDown: false, isByNode: false, filter: '' };
  private _changed = new Signal<this, void>(this);
}
