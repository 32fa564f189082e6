/** Paints the operators of a rank below its calls: a band for each level, wide ones with their names. */

import { LEVELS } from './operators';
import { callsHeight, Trace } from './trace';
import { COLOURS, IViewport, LEFT, MISS, momentAt, TOP, xOf } from './viewport';

const LETTER = 6.2;
const LOWEST_TEXT = 8;
const PALE = 0.45;

/** The box of an operator as left, top, width and height; it is at least a pixel wide. */
export function operatorBox(
  trace: Trace,
  operator: number,
  row: number,
  seen: IViewport
): [number, number, number, number] {
  const { began, ended, depth } = trace.operators!;
  const calls = callsHeight(trace, seen.row);
  const tall = (seen.row - calls - 2) / LEVELS;
  const left = xOf(began[operator], seen);
  const top = TOP + row * seen.row - seen.top + calls + depth[operator] * tall;
  return [left, top, Math.max(1, xOf(ended[operator], seen) - left), tall - 0.5];
}

export function paintOperators(
  context: CanvasRenderingContext2D,
  trace: Trace,
  seen: IViewport,
  text: string,
  row: number
): void {
  const operators = trace.operators;
  if (!operators) {
    return;
  }
  const until: number[] = [];
  const stop = operators.first[row + 1];
  for (let i = operators.from(row, Math.max(0, seen.start)); i < stop && operators.began[i] <= seen.end; i++) {
    const [left, top, wide, tall] = operatorBox(trace, i, row, seen);
    const level = operators.depth[i];
    if (level >= LEVELS || left + wide <= (until[level] ?? -1)) {
      continue; // operators within one pixel are painted once
    }
    until[level] = Math.floor(left + wide);
    const start = Math.max(left, LEFT);
    const right = Math.min(left + wide, seen.width);
    if (right <= start) {
      continue;
    }
    context.globalAlpha = PALE;
    context.fillStyle = COLOURS[operators.name[i] % COLOURS.length];
    context.fillRect(start, top, right - start, tall);
    context.globalAlpha = 1;
    const name = operators.nameOf(i);
    if (tall >= LOWEST_TEXT && right - start > name.length * LETTER + 6) {
      context.textAlign = 'left';
      context.fillStyle = text;
      context.fillText(name, start + 3, top + tall / 2);
    }
  }
}

/** The row and the operator at a point of the canvas; undefined if there is none. */
export function operatorAt(x: number, y: number, trace: Trace, seen: IViewport): [number, number] | undefined {
  const row = Math.floor((y - TOP + seen.top) / seen.row);
  if (!trace.operators || y < TOP || x < LEFT || row < 0 || row >= trace.data.rows.length) {
    return undefined;
  }
  const calls = callsHeight(trace, seen.row);
  const below = y - TOP + seen.top - row * seen.row - calls;
  const level = Math.floor((below * LEVELS) / (seen.row - calls - 2));
  const miss = momentAt(LEFT + MISS, seen) - momentAt(LEFT, seen);
  const found = below < 0 ? -1 : trace.operators.at(row, level, momentAt(x, seen), miss);
  return found < 0 ? undefined : [row, found];
}
