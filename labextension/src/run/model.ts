/** What `application/vnd.jdist.run.v1+json` holds: jdist/notebook/output/run_json_schema.py, where each field is described. */

import { ReadonlyPartialJSONObject } from '@lumino/coreutils';

export const MIME = 'application/vnd.jdist.run.v1+json';
export const VERSION = 1;

export type RankState = 'waiting' | 'running' | 'value' | 'error' | 'timeout' | 'interrupted' | 'lost';

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

export interface IAlike {
  kind: 'alike';
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
  state: RankState;
  headline: string;
  place?: string;
  traceback?: IPiece;
  is_echo?: boolean;
}

export interface IFinding {
  headline: string;
  is_certain: boolean;
  details?: string[];
  ways?: IWay[];
}

export interface IWay {
  command: string;
  effect: string;
}

export interface IRun {
  version: number;
  run: number;
  cluster: string;
  state: 'waiting' | 'running' | 'done';
  seconds: number;
  ranks: { ranks: string; state: RankState; seconds?: number }[];
  segments?: Segment[];
  failures?: IFailing[];
  more_failures?: number;
  verdict?: IFinding;
  notices?: string[];
  title?: string;
  lead?: number;
}

/** One rank's part in a run. */
export interface IPart {
  rank: number;
  state: RankState;
  seconds?: number;
}

/** `0-3,7` as numbers. */
export function ranksOf(text: string): number[] {
  const found: number[] = [];
  for (const piece of text.split(',').filter(Boolean)) {
    const [first, last] = piece.split('-').map(Number);
    for (let rank = first; rank <= (last ?? first); rank++) {
      found.push(rank);
    }
  }
  return found;
}

/** Whether `0-3,7` has the rank. */
export function has(text: string, rank: number): boolean {
  return text.split(',').some(piece => {
    const [first, last] = piece.split('-').map(Number);
    return piece !== '' && rank >= first && rank <= (last ?? first);
  });
}

/** The run's ranks, in their order. */
export function partsOf(run: IRun): IPart[] {
  const parts = run.ranks.flatMap(({ ranks, state, seconds }) =>
    ranksOf(ranks).map(rank => ({ rank, state, seconds }))
  );
  return parts.sort((a, b) => a.rank - b.rank);
}

/** Whether it came to a bad end, and not because somebody stopped it. */
export function isCause(state: RankState): boolean {
  return state === 'error' || state === 'timeout' || state === 'lost';
}

/** Those that failed come first, then those that were interrupted. */
export function failedFirst(parts: IPart[]): IPart[] {
  const weight = ({ state }: IPart): number => (isCause(state) ? 0 : state === 'interrupted' ? 1 : 2);
  return [...parts].sort((a, b) => weight(a) - weight(b) || a.rank - b.rank);
}

export function doneOf(run: IRun): number {
  return partsOf(run).filter(part => part.state !== 'waiting' && part.state !== 'running').length;
}

const NUMBER = /(?<![\w.])[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)(?!\w)/g;

/** One line for lines that differ in their numbers only: `loss 0.1 | 0.2`; equal numbers stand once. */
export function joined(lines: string[]): string {
  const found = lines.map(line => line.match(NUMBER) ?? []);
  const words = lines[0].split(NUMBER);
  if (found.some(numbers => numbers.length !== words.length - 1)) {
    return lines.join(' | ');
  }
  return words
    .map((word, i) => {
      const column = i ? found.map(numbers => numbers[i - 1]) : [];
      return (new Set(column).size === 1 ? column[0] : column.join(' | ')) + word;
    })
    .join('');
}

/** The part of the markup, or nothing where the two do not belong together. */
export function cut(html: unknown, piece: IPiece | undefined): string {
  const text = Array.isArray(html) ? html.join('') : typeof html === 'string' ? html : '';
  const found = piece ? text.slice(piece.start, piece.start + piece.length) : '';
  return found.startsWith('<') ? found : '';
}
