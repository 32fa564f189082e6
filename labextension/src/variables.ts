/** The variables of ranks, as the server sends them (jdist/server/snapshots.py). */

/** A variable on the ranks whose metadata agree; `nbytes` are the least and the greatest of them. */
export interface IVariant {
  ranks: string;
  type: string;
  shape: number[] | null;
  dtype: string;
  device: string;
  placement: string;
  length: number | null;
  nbytes: [number, number] | null;
  value: string;
  detail: string;
}

/** A name. Only `equal` says something about contents; `alike` is about type, shape, dtype and placement. */
export interface IVariable {
  name: string;
  comparison: 'equal' | 'alike' | 'differs' | '';
  missing: string;
  size: number;
  variants: IVariant[];
}

/** The names of the ranks, and sentences about what is not listed. */
export interface IVariables {
  variables: IVariable[];
  notes: string[];
}

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
export type ValueDescription = Partial<Omit<IVariant, 'ranks' | 'value' | 'nbytes'>> & {
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
