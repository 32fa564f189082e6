/** The selected ranks, and how the table shows them: state that the sections of the panel share. */

import { ISignal, Signal } from '@lumino/signaling';

import { IClusters } from '../tokens';

/** How the table of ranks is sorted, grouped and filtered. */
export interface ITableView {
  /** The key of a column. */
  sort: string;
  isDescending: boolean;
  isByNode: boolean;
  filter: string;
}

export const DEFAULT_VIEW: ITableView = { sort: 'rank', isDescending: false, isByNode: false, filter: '' };

/** The selection ends when another cluster is shown, and loses the ranks that the world no longer has. */
export class Selection {
  constructor(clusters: Pick<IClusters, 'changed' | 'current'>) {
    clusters.changed.connect(() => {
      const current = clusters.current?.name ?? '';
      if (current !== this._cluster) {
        this._cluster = current;
        this.select([]);
      }
      const size = clusters.current?.world_size ?? Infinity;
      if (this.ranks.some(rank => rank >= size)) {
        this.select(this.ranks.filter(rank => rank < size));
      }
    });
  }

  /** Other ranks are selected, or the view has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The selected ranks of the cluster that the panel shows, sorted. */
  get ranks(): number[] {
    return [...this._ranks].sort((a, b) => a - b);
  }

  has(rank: number): boolean {
    return this._ranks.has(rank);
  }

  select(ranks: Iterable<number>): void {
    this._ranks = new Set(ranks);
    this._changed.emit();
  }

  toggle(rank: number): void {
    if (!this._ranks.delete(rank)) {
      this._ranks.add(rank);
    }
    this._changed.emit();
  }

  get view(): ITableView {
    return this._view;
  }

  changeView(change: Partial<ITableView>): void {
    this._view = { ...this._view, ...change };
    this._changed.emit();
  }

  private _cluster = '';
  private _ranks = new Set<number>();
  private _view = DEFAULT_VIEW;
  private _changed = new Signal<this, void>(this);
}
