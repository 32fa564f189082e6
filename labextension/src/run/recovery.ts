/**
 * Brings back what an output has missed. The kernel keeps an output up to date as long as its page is open. Of a page that
 * has been loaded again, or whose kernel is gone, the outputs stay as they were stored; then the server is asked.
 */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { PartialJSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';

import { RequestError } from '../api';
import { IRunBundle, MIME } from './model';

/** An output that has not been drawn for so many milliseconds is not kept up to date by its kernel. */
export const STALE = 5000;
/** Milliseconds after which the server is asked again while the run goes on, or if it did not answer. */
const AGAIN = 2000;
/** The server knows neither the run nor its output: asking again is of no use. */
const FINAL = [400, 404, 410];

/** Requests what a cell shows of the run. Rejects with a RequestError. */
export type LoadRun = (run: IRunBundle) => Promise<PartialJSONObject>;

/** Follows one output; `onLost` is called with the reason if what it has missed cannot be had. */
export class Recovery implements IDisposable {
  constructor(
    private _load: LoadRun,
    private _onLost: (reason: string) => void
  ) {}

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this._timer);
  }

  /** The output has been drawn. */
  drawn(model: IRenderMime.IMimeModel, run: IRunBundle): void {
    this._drawn += 1;
    const wait = this._isLoading ? AGAIN : STALE;
    this._isLoading = false;
    this._schedule(run.state === 'done' ? -1 : wait, model, run);
  }

  private _schedule(wait: number, model: IRenderMime.IMimeModel, run: IRunBundle): void {
    clearTimeout(this._timer);
    if (wait >= 0 && !this._isDisposed) {
      this._timer = setTimeout(() => void this._recover(model, run), wait);
    }
  }

  private async _recover(model: IRenderMime.IMimeModel, run: IRunBundle): Promise<void> {
    const drawn = this._drawn;
    const isCurrent = (): boolean => drawn === this._drawn && !this._isDisposed;
    try {
      const data = await this._load(run);
      if (isCurrent()) {
        this._isLoading = true;
        model.setData({ data: recovered(model.data as PartialJSONObject, data) }); // draws it again
      }
    } catch (error) {
      if (!isCurrent()) {
        return;
      }
      if (error instanceof RequestError && FINAL.includes(error.status)) {
        this._onLost(error.message);
      } else {
        this._schedule(AGAIN, model, run);
      }
    }
  }

  private _drawn = 0;
  private _isLoading = false;
  private _isDisposed = false;
  private _timer?: ReturnType<typeof setTimeout>;
}

/** The data of the output with what the server knows of its run. What only the notebook knew about the run is kept. */
export function recovered(old: PartialJSONObject, found: PartialJSONObject): PartialJSONObject {
  const [before, after] = [old[MIME], found[MIME]] as unknown as IRunBundle[];
  const run = { ...after, lead: before.lead, frames: before.frames, notices: before.notices ?? after.notices };
  return { ...old, ...found, [MIME]: JSON.parse(JSON.stringify(run)) as PartialJSONObject };
}
