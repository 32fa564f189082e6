/** What is shown of the segments of a run's output. */

import { includesRank } from '../format';
import { IRankText, ITextSegment } from '../generated/server';
import { RankChoice, Segment } from './model';

/** The marked pieces of the HTML, and whether the notebook is trusted. */
export interface ISource {
  pieces: string[];
  trusted: boolean;
}

/** Lines of several ranks, with each rank's own. */
export type DifferingLines = ITextSegment & { texts: IRankText[] };

/** What is shown of a segment: of lines that are merged for several ranks, a single rank has its own. */
export function segmentsFor(segment: Segment, choice: RankChoice): Segment[] {
  if (choice === 'all') {
    return [segment];
  }
  if (segment.kind === 'text' && segment.texts) {
    const own = segment.texts.find(each => includesRank(each.ranks, choice));
    return own ? [{ kind: 'text', ranks: own.ranks, text: own.text, stderr: segment.stderr }] : [];
  }
  return !segment.ranks || includesRank(segment.ranks, choice) ? [segment] : [];
}

/** The piece of the HTML; empty if there is none. */
export function htmlOf({ pieces }: ISource, piece: number | undefined): string {
  return pieces.find((_, number) => number === piece) ?? '';
}

/** Whether the segment is one line for the lines of more than `maxLines` ranks, which it opens to show. */
export function opens(segment: Segment, maxLines: number): segment is DifferingLines {
  return segment.kind === 'text' && !!segment.texts && segment.texts.length > maxLines;
}

/** The lines of each rank of such a segment, with the rank before each. */
export function linesByRank({ texts }: DifferingLines): string {
  const width = Math.max(...texts.map(({ ranks }) => ranks.length)) + 2;
  return texts.map(({ ranks, text }) => text.replace(/^/gm, `${`[${ranks}]`.padEnd(width)} `)).join('\n');
}

/** Equal for segments that look the same, and for one that opens, which is changed in its place. */
export function keyOf(segment: Segment, choice: RankChoice, source: ISource, maxLines: number): string {
  const kind = choice === 'all' ? 'all' : 'one';
  if (opens(segment, maxLines)) {
    return `${kind}opens${segment.ranks}`;
  }
  if (segment.kind !== 'shown') {
    return kind + JSON.stringify(segment);
  }
  return [kind, source.trusted, JSON.stringify({ ...segment, piece: null }), htmlOf(source, segment.piece)].join('\0');
}

/** All ranks of a segment, as a user writes them. */
export function ranksIn(segment: Segment): string {
  return segment.ranks ?? '';
}

/** Whether the segment was written to standard error. */
export function isStderr(segment: Segment): boolean {
  return segment.kind === 'text' && !!segment.stderr;
}

/** The lines that the segment takes; a display counts as one. */
export function lineCount(segment: Segment): number {
  return segment.kind === 'text' ? segment.text.split('\n').length : 1;
}
