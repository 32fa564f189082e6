/** The values of variables, as ranks describe them. */

import { IVariantRow } from './generated/server';

/** How many elements are in which of the bins from `low` to `high`, which are the same on all ranks. */
export interface IHistogram {
  low: number;
  high: number;
  counts: number[];
  nan: number;
  negative_infinity: number;
  positive_infinity: number;
  /** Elements that have changed since the ends were found out. */
  outside: number;
}

/** What a value is; see ValueDescription of jdist/worker/variables/describe.py. */
export type ValueDescription = Partial<Omit<IVariantRow, 'ranks' | 'value' | 'nbytes'>> & {
  error?: string;
  mean?: number | null;
  std?: number | null;
  norm?: number | null;
  least?: number | null;
  greatest?: number | null;
  nan_count?: number | null;
  sampled?: boolean;
  thumb?: (number | null)[][] | null;
  histogram?: IHistogram;
};

/** What a variable is on the ranks where that is the same. */
export interface IValueRow {
  ranks: string;
  description: ValueDescription;
}
