/** The output of a run as `application/vnd.jdist.run.v1+json`, which jdist/notebook/output/run_json.py describes. */

import { IRunId } from '../api';
import { parseRanks } from '../format';
import { IRunJson } from '../generated/server';
import { isFailure, OutcomeState } from '../states';

export const MIME = 'application/vnd.jdist.run.v1+json';
export const VERSION = 1;

export type Segment = NonNullable<IRunJson['segments']>[number];

/** Whether the output is of that run, and not of another cluster's that has the same name. */
export function isOfRun(output: IRunJson | undefined, { run, cluster, cluster_id }: IRunId): boolean {
  if (output?.run !== run) {
    return false;
  }
  return output.cluster_id && cluster_id ? output.cluster_id === cluster_id : output.cluster === cluster;
}

/** Whose output is shown: one rank's, or that of all. */
export type RankChoice = number | 'all';

/** One rank's part in a run. */
export interface IPart {
  rank: number;
  state: OutcomeState;
  seconds?: number;
}

/** The parts of all ranks, by rank. */
export function partsOf(run: IRunJson): IPart[] {
  const paused = new Set((run.paused ?? []).flatMap(place => parseRanks(place.ranks)));
  const parts = run.ranks.flatMap(({ ranks, state, seconds }) =>
    parseRanks(ranks).map(rank => ({ rank, state: paused.has(rank) ? ('paused' as const) : state, seconds }))
  );
  return parts.sort((a, b) => a.rank - b.rank);
}

/** The parts that failed come first, then those that were interrupted. */
export function failedFirst(parts: IPart[]): IPart[] {
  const weight = ({ state }: IPart): number => (isFailure(state) ? 0 : state === 'interrupted' ? 1 : 2);
  return [...parts].sort((a, b) => weight(a) - weight(b) || a.rank - b.rank);
}

const UNFINISHED: OutcomeState[] = ['waiting', 'running', 'paused'];

/** How many ranks are done. */
export function doneCount(run: IRunJson): number {
  return partsOf(run).filter(part => !UNFINISHED.includes(part.state)).length;
}

/** The marked pieces of the bundle's HTML, by their numbers: jdist/notebook/text/markup.py marks them. */
export function piecesOf(html: unknown): string[] {
  const text = Array.isArray(html) ? html.join('') : typeof html === 'string' ? html : '';
  return text.split('<!--jdist-->').filter((_, i) => i % 2);
}
