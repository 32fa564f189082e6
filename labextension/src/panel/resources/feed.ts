/** The resources of a cluster, requested again and again while somebody looks at them. */

import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { IResourcesSnapshot } from '../../generated/server';

/** What is to be requested. */
export interface IWanted {
  cluster: string;
  seconds: number;
}

/** An answer, and when it arrived, in milliseconds of `Date.now()`. */
export interface IFound extends IWanted {
  resources: IResourcesSnapshot;
  receivedAt: number;
}

/** While requests fail, the time between them doubles, up to so many times. */
const MOST_INTERVALS = 10;

export class ResourceFeed implements IDisposable {
  /**
   * `wanted` returns null while nobody looks; `refresh` is to be called when that changes. `interval` returns the
   * milliseconds between two requests.
   */
  constructor(
    private _request: (wanted: IWanted) => Promise<IResourcesSnapshot>,
    private _wanted: () => IWanted | null,
    private _interval: () => number
  ) {}

  /** There is another answer, or another reason why there is none. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The newest answer for the cluster that was wanted last. */
  get found(): IFound | null {
    return this._found;
  }

  /** Why the last request has failed; empty if it has not. */
  get problem(): string {
    return this._problem;
  }

  /** Requests what is wanted now and from then on, after the answer to a request that is under way. */
  refresh(): void {
    const wanted = this._wanted();
    if (wanted && wanted.cluster !== this._cluster) {
      this._cluster = wanted.cluster;
      this._found = null;
      this._problem = '';
      this._failures = 0;
    }
    if (!this._isLoading) {
      void this._load();
    }
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this._timer);
    Signal.clearData(this);
  }

  private async _load(): Promise<void> {
    clearTimeout(this._timer);
    const asked = this._wanted();
    if (!asked || this._isDisposed) {
      return;
    }
    this._isLoading = true;
    const began = Date.now();
    let [found, problem]: [IResourcesSnapshot | null, string] = [null, ''];
    try {
      found = await this._request(asked);
    } catch (error) {
      problem = error instanceof Error ? error.message : String(error);
    }
    this._isLoading = false;
    if (this._isDisposed) {
      return;
    }
    if (asked.cluster === this._cluster) {
      this._problem = problem;
      this._failures = problem ? this._failures + 1 : 0;
      this._found = found ? { ...asked, resources: found, receivedAt: Date.now() } : this._found;
      this._changed.emit();
    }
    this._schedule(asked, Date.now() - began);
  }

  /** Requests again: at once if something else is wanted by now. */
  private _schedule(asked: IWanted, spent: number): void {
    const wanted = this._wanted();
    if (wanted && (wanted.cluster !== asked.cluster || wanted.seconds !== asked.seconds)) {
      void this._load();
    } else if (wanted) {
      const wait = this._interval() * Math.min(MOST_INTERVALS, 2 ** this._failures);
      this._timer = setTimeout(() => void this._load(), Math.max(0, wait - spent));
    }
  }

  private _cluster = '';
  private _found: IFound | null = null;
  private _problem = '';
  private _failures = 0;
  private _isLoading = false;
  private _isDisposed = false;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private readonly _changed = new Signal<this, void>(this);
}
