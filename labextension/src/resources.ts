/** How busy nodes and ranks were, as the server sends it (jdist/server/snapshots.py). */

/**
 * What is measured: CPU in busy cores, memory in bytes, the GPU's load as a share of 0 to 1, its memory in bytes, and
 * bytes that went over the network each second.
 */
export type Quantity = 'cpu' | 'memory' | 'gpu' | 'gpu_memory' | 'received' | 'sent';

/** Each is as long as the node's `ages`; null where it is not known. What there is not, such as a GPU, is absent. */
export type Series = Partial<Record<Quantity, (number | null)[]>>;

/** A node, and its ranks. A total is 0 or null where it is not known. */
export interface INodeResources {
  node: number;
  hostname: string;
  cores: number | null;
  memory_total: number | null;
  gpus?: number | null;
  gpu_memory_total?: number | null;
  /** When each entry was measured, in seconds before the answer; descending, and not necessarily evenly spaced. */
  ages: number[];
  /** Of the node as a whole. */
  series: Series;
  ranks: { rank: number; series: Series }[];
}

/** A run that took place within the time that was asked for; ages as above, `ended` null while it is active. */
export interface IRunSpan {
  run: number;
  ranks: string;
  began: number;
  ended: number | null;
}

export interface IResources {
  /** How far back it reaches. */
  seconds: number;
  nodes: INodeResources[];
  runs: IRunSpan[];
  /** Sentences about nodes of which nothing is known. */
  missing: string[];
}
