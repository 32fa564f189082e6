/**
 * Brings back what an output has missed. The kernel keeps an output up to date as long as its page is open. Of a page that
 * has been loaded again, or whose kernel is gone, the outputs stay as they were stored; then the server is asked.
 */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { JSONExt, PartialJSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';

import { ICluster, RequestError } from '../api';
import { IMetricsBundle, METRICS_MIME } from '../metrics/data';
import { pausedState } from '../paused';
import { IRunJson } from '../generated/server';
import { MIME } from './model';

/** An output that has not been drawn for so many milliseconds is not kept up to date by its kernel. */
export const STALE = 5000;
/** Milliseconds after which the server is asked again while the run goes on. */
export const AGAIN = 2000;
/** The wait doubles up to so many milliseconds while the server does not answer, or the run stays paused. */
export const LONGEST = 30000;
/** Characters a millisecond at which a kernel draws an output that does not change: `_CALM_BYTES_PER_SECOND` in display.py. */
const CALM_RATE = 20;
/** The server knows neither the run nor its output: asking again is of no use. */
const FINAL = [400, 404, 410];

/** Requests what a cell shows of the run, and of its metrics if there are any. Rejects with a RequestError. */
export type LoadRun = (run: IRunJson) => Promise<{ data: PartialJSONObject; metrics?: PartialJSONObject }>;

/**
 * Follows one output; `onLost` is called with the reason if what it has missed cannot be had. The reason is empty for an
 * output of an earlier version, which does not have its cluster's id: another cluster of that name might answer.
 */
export class Recovery implements IDisposable {
  constructor(
    private _load: LoadRun,
    private _onLost: (reason: string) => void,
    private _onMetrics: (run: IRunJson, metrics: PartialJSONObject) => void = () => undefined
  ) {}

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this._timer);
  }

  /** The output has been drawn. A large one is drawn by its kernel, and asked for, less often. */
  drawn(model: IRenderMime.IMimeModel, run: IRunJson): void {
    this._drawn += 1;
    if (!run.cluster_id) {
      if (run.state !== 'done') {
        this._onLost('');
      }
      return;
    }
    const pace = sizeOf(model.data as PartialJSONObject) / CALM_RATE;
    this._again = AGAIN;
    const own = this._drawn === 1 ? STALE : STALE + 1.5 * pace; // at first it may be as it was stored
    const wait = this._isLoading ? Math.max(AGAIN, pace) : own;
    this._isLoading = false;
    this._schedule(run.state === 'done' ? -1 : wait, model, run);
  }

  /** Something has happened to the run: if the server is to be asked at some time, it is asked soon. */
  hasChanged(): void {
    this._again = AGAIN;
    if (this._isBackingOff) {
      this._scheduleAgain?.();
    }
  }

  private _schedule(wait: number, model: IRenderMime.IMimeModel, run: IRunJson, isBackingOff = false): void {
    clearTimeout(this._timer);
    this._isBackingOff = isBackingOff && wait > AGAIN;
    this._scheduleAgain = () => this._schedule(AGAIN, model, run);
    if (wait >= 0 && !this._isDisposed) {
      this._timer = setTimeout(() => void this._recover(model, run), wait);
    }
  }

  /** Asks again, and the next time after twice as long. */
  private _backOff(model: IRenderMime.IMimeModel, run: IRunJson): void {
    this._schedule(this._again, model, run, true);
    this._again = Math.min(2 * this._again, LONGEST);
  }

  private async _recover(model: IRenderMime.IMimeModel, run: IRunJson): Promise<void> {
    const drawn = this._drawn;
    this._isBackingOff = false;
    const isCurrent = (): boolean => drawn === this._drawn && !this._isDisposed;
    try {
      const { data, metrics } = await this._load(run);
      if (!isCurrent()) {
        return;
      }
      if (metrics) {
        this._onMetrics(run, metrics);
      }
      const [before, after] = [model.data as PartialJSONObject, recovered(model.data as PartialJSONObject, data)];
      if (run.paused?.length && isSame(before, after)) {
        this._backOff(model, run);
      } else {
        this._isLoading = true;
        model.setData({ data: after }); // draws it again
      }
    } catch (error) {
      if (!isCurrent()) {
        return;
      }
      if (error instanceof RequestError && FINAL.includes(error.status)) {
        this._onLost(error.message);
      } else {
        this._backOff(model, run);
      }
    }
  }

  private _drawn = 0;
  private _again = AGAIN;
  private _isBackingOff = false;
  private _scheduleAgain?: () => void;
  private _isLoading = false;
  private _isDisposed = false;
  private _timer?: ReturnType<typeof setTimeout>;
}

/**
 * Where among a cell's outputs the chart of a run is: the one of the run's number behind the run's own output. Where there
 * is none, the number of outputs; -1 if the run's own output is not there either.
 */
export function chartIndex(outputs: readonly PartialJSONObject[], run: IRunJson): number {
  const isOwn = (data: PartialJSONObject): boolean => {
    const found = data[MIME] as unknown as IRunJson | undefined;
    return found?.run === run.run && found.cluster_id === run.cluster_id;
  };
  const own = outputs.findIndex(isOwn);
  const isChart = (data: PartialJSONObject): boolean =>
    (data[METRICS_MIME] as unknown as IMetricsBundle | undefined)?.run === run.run;
  const found = outputs.findIndex((data, i) => i > own && isChart(data));
  return own < 0 ? -1 : found < 0 ? outputs.length : found;
}

/** A key that changes with what is reported of the run: its state, the ranks that are done, and where ranks are paused. */
export function reportedState(cluster: ICluster | undefined, number: number): string {
  const run = cluster?.runs?.find(each => each.number === number);
  return JSON.stringify([cluster?.cluster, run?.state, run?.done, pausedState(cluster)]);
}

/** The number of characters in an output's data. */
function sizeOf(data: PartialJSONObject): number {
  const sizes = Object.values(data).map(each => (typeof each === 'string' ? each : JSON.stringify(each) || '').length);
  return sizes.reduce((sum, each) => sum + each, 0);
}

/** Whether both show the same of the run, apart from the time. */
function isSame(a: PartialJSONObject, b: PartialJSONObject): boolean {
  const [one, other] = [a, b].map(each => ({ ...(each[MIME] as PartialJSONObject), seconds: 0 }));
  return JSONExt.deepEqual(one, other);
}

/** The data of the output with what the server knows of its run. What only the notebook knew about the run is kept. */
export function recovered(old: PartialJSONObject, found: PartialJSONObject): PartialJSONObject {
  const [before, after] = [old[MIME], found[MIME]] as unknown as IRunJson[];
  const notices = [...new Set([...(before.notices ?? []), ...(after.notices ?? [])])]; // such as that output is missing
  const run = { ...after, lead: before.lead, frames: before.frames, notices };
  return { ...old, ...found, [MIME]: JSON.parse(JSON.stringify(run)) as PartialJSONObject };
}
