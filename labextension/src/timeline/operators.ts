/** What main threads did between their calls: the operators of a profiled run (jdist/client/measure/columns.py). */

import { TranslationBundle } from '@jupyterlab/translation';

import { formatInterval } from '../format';

/** The operators as they are sent; the columns are compressed and base64-encoded. */
export interface IOperatorData {
  names: string[];
  /** How many of them each row has. */
  counts: number[];
  left_out: number;
  columns: Record<string, string>;
}

/** How many levels of operators that are nested in each other are drawn. */
export const LEVELS = 3;

/** The operators in columns, ordered by row and then by start. Times are in ticks since the run's start. */
export class Operators {
  constructor(
    readonly data: IOperatorData,
    columns: Record<string, ArrayBuffer>
  ) {
    this.began = new Uint32Array(columns.began);
    this.ended = new Uint32Array(columns.ended);
    this.name = new Uint32Array(columns.name);
    this.depth = new Uint8Array(columns.depth);
    this.first = new Uint32Array(data.counts.length + 1);
    data.counts.forEach((count, row) => (this.first[row + 1] = this.first[row] + count));
    this._upto = new Uint32Array(this.began.length);
    data.counts.forEach((_, row) => {
      let latest = 0;
      for (let i = this.first[row]; i < this.first[row + 1]; i++) {
        this._upto[i] = latest = Math.max(latest, this.ended[i]);
      }
    });
  }

  readonly began: Uint32Array;
  readonly ended: Uint32Array;
  /** Its index in `data.names`. */
  readonly name: Uint32Array;
  /** How many others each is nested in. */
  readonly depth: Uint8Array;
  /** The index of the first operator of each row; one more entry ends the last row. */
  readonly first: Uint32Array;

  /** The first operator of a row that has not ended before a moment. */
  from(row: number, moment: number): number {
    let [low, high] = [this.first[row], this.first[row + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this._upto[middle] < moment) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /** The operator of a row on a level that is nearest to a moment and at most `miss` ticks away; -1 for none. */
  at(row: number, level: number, moment: number, miss: number): number {
    let [best, nearest] = [-1, miss];
    const stop = this.first[row + 1];
    for (let i = this.from(row, Math.max(0, moment - miss)); i < stop && this.began[i] <= moment + miss; i++) {
      const away = Math.max(this.began[i] - moment, moment - this.ended[i], 0);
      if (this.depth[i] === level && away <= nearest) {
        [best, nearest] = [i, away];
      }
    }
    return best;
  }

  nameOf(operator: number): string {
    return this.data.names[this.name[operator]];
  }

  /** Everything known about an operator, in several lines. */
  describe(operator: number, rank: number, tick: number, trans: TranslationBundle): string {
    const began = formatInterval(this.began[operator] * tick);
    const length = formatInterval((this.ended[operator] - this.began[operator]) * tick);
    const lines = [trans.__('rank %1: %2', rank, this.nameOf(operator)), trans.__('at %1, for %2', began, length)];
    return lines.join('\n');
  }

  /** For each operator, the latest end of the row's operators up to it. */
  private readonly _upto: Uint32Array;
}
