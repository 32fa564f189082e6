/** What the section of resources shows: ranks or nodes, and how far back. */

import { ISignal, Signal } from '@lumino/signaling';

export type By = 'rank' | 'node';

export interface IResourceView {
  by: By;
  /** One of `WINDOWS`. */
  seconds: number;
}

/** How far back the charts can reach, in seconds. */
export const WINDOWS = [60, 300, 900, 3600];

const DEFAULT: IResourceView = { by: 'rank', seconds: 300 };

/** The choice of the user, which is kept over a reload. */
export class ResourceView {
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get values(): IResourceView {
    return this._values;
  }

  /** Changes what is named; what is no valid choice, as another version may have saved it, is ignored. */
  change({ by, seconds }: Partial<IResourceView>): void {
    const isBy = by === 'rank' || by === 'node';
    const isWindow = seconds !== undefined && WINDOWS.includes(seconds);
    this._values = { by: isBy ? by : this._values.by, seconds: isWindow ? seconds : this._values.seconds };
    this._changed.emit();
  }

  private _values = DEFAULT;
  private readonly _changed = new Signal<this, void>(this);
}
