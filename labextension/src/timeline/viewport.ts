/** The visible part of a timeline: where a moment is on the canvas, and the colours of what is painted there. */

/** The colours of groups. White text on them has a contrast of at least 4.5, they on white and black of at least 3. */
export const COLOURS = ['#2f6fb5', '#a8541c', '#3a7d3a', '#7d4fa3', '#a6374f', '#27797f', '#7b681c', '#5d6570'];

/** The widths in pixels of the margin on the left for the ranks, and on top for the times. */
export const LEFT = 76;
export const TOP = 22;
/** The pixels by which a click may miss a call. */
export const MISS = 3;

/** The visible part of a trace and the size of its canvas. `start` and `end` are ticks, everything else is pixels. */
export interface IViewport {
  start: number;
  end: number;
  top: number;
  width: number;
  height: number;
  row: number;
}

export function xOf(moment: number, seen: IViewport): number {
  return LEFT + ((moment - seen.start) / (seen.end - seen.start)) * (seen.width - LEFT);
}

export function momentAt(x: number, seen: IViewport): number {
  return seen.start + ((x - LEFT) / (seen.width - LEFT)) * (seen.end - seen.start);
}
