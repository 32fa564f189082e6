/** The output of a run as `application/vnd.jdist.run.v1+json`, which jdist/notebook/output/run_json.py describes. */

import { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { IRunId } from '../api';
import { parseRanks } from '../format';
import { IRemedy } from '../generated/server';
import { isFailure, OutcomeState } from '../states';

export const MIME = 'application/vnd.jdist.run.v1+json';
export const VERSION = 1;

/** A part of the bundle's `text/html`. */
export interface IPiece {
  start: number;
  length: number;
}

export interface IText {
  kind: 'text';
  ranks: string;
  text: string;
  stderr?: boolean;
}

/** `text` has the numbers of all ranks, `loss 0.1 | 0.2`; `texts` are the ranks' own. */
export interface IAlike {
  kind: 'alike';
  ranks: string;
  text: string;
  texts: { ranks: string; text: string }[];
  stderr?: boolean;
}

export interface IShown {
  kind: 'shown';
  ranks: string;
  piece?: IPiece;
  data?: ReadonlyPartialJSONObject;
  metadata?: ReadonlyPartialJSONObject;
  is_result?: boolean;
}

export interface IGap {
  kind: 'gap';
  text: string;
  ranks?: string;
}

export type Segment = IText | IAlike | IShown | IGap;

export interface IFailing {
  ranks: string;
  state: OutcomeState;
  headline: string;
  place?: string;
  traceback?: IPiece;
  is_echo?: boolean;
  remedies?: IRemedy[];
}

export interface IFinding {
  headline: string;
  is_certain: boolean;
  details?: string[];
  remedies?: IRemedy[];
  /** It stands below the failures, one of which is its cause. */
  follows_failures?: boolean;
}

/** Ranks that are paused at the same place: a line of the cell of run `of_run`, or of `file` if that is absent. */
export interface IPlace {
  ranks: string;
  reason: string;
  function: string;
  line: number;
  source?: string;
  file?: string;
  of_run?: number;
  about_to?: string;
  returns?: string;
  thread?: string;
  error?: string;
}

export interface IRunBundle extends IRunId {
  version: number;
  state: 'waiting' | 'running' | 'done';
  seconds: number;
  ranks: { ranks: string; state: OutcomeState; seconds?: number }[];
  segments?: Segment[];
  failures?: IFailing[];
  more_failures?: number;
  verdict?: IFinding;
  notices?: string[];
  paused?: IPlace[];
  /** In which frames the cell runs, if not in the ranks' own names. */
  frames?: string;
  lead?: number;
}

/** Whether the output is of that run, and not of another cluster's that has the same name. */
export function isOfRun(output: IRunBundle | undefined, { run, cluster, cluster_id }: IRunId): boolean {
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
export function partsOf(run: IRunBundle): IPart[] {
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
export function doneCount(run: IRunBundle): number {
  return partsOf(run).filter(part => !UNFINISHED.includes(part.state)).length;
}

/** How many lines of a traceback are shown at first, without those of folded frames. */
export function shownLines(html: string): number {
  return html.replace(/<details.*?<\/details>/gs, '\n').split('\n').length;
}

/** The piece of the bundle's HTML; empty if the two do not belong together. */
export function htmlOf(html: unknown, piece: IPiece | undefined): string {
  const text = Array.isArray(html) ? html.join('') : typeof html === 'string' ? html : '';
  const found = piece ? text.slice(piece.start, piece.start + piece.length) : '';
  return found.startsWith('<') ? found : '';
}
