/** Paints a trace on a canvas: a row for each rank, a bar for each call, hatched where the call waits. */

import { formatInterval } from '../format';
import { paintOperators } from './paintoperators';
import { callsHeight, Trace } from './trace';
import { COLOURS, IViewport, LEFT, TOP, xOf } from './viewport';

const LETTER = 6.2;
const FONT = '11px system-ui, sans-serif';

/** The colours of JupyterLab's theme. */
export interface ITheme {
  text: string;
  faint: string;
  line: string;
  ground: string;
  mark: string;
}

/** The colours that apply to a node of the page. */
export function themeOf(node: HTMLElement): ITheme {
  const style = getComputedStyle(node);
  const colour = (name: string, other: string): string => style.getPropertyValue(name).trim() || other;
  return {
    text: colour('--jp-ui-font-color1', '#222'),
    faint: colour('--jp-ui-font-color2', '#666'),
    line: colour('--jp-border-color2', '#ddd'),
    ground: colour('--jp-layout-color0', '#fff'),
    mark: colour('--jp-ui-font-color0', '#000')
  };
}

/** Paints the visible part; the call `chosen` and those it belongs together with are marked, -1 for none. */
export function paint(context: CanvasRenderingContext2D, trace: Trace, seen: IViewport, theme: ITheme, chosen: number) {
  const { width, height, top, row: tall } = seen;
  context.fillStyle = theme.ground;
  context.fillRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = 'middle';
  paintTimes(context, trace, seen, theme);
  context.save();
  context.beginPath();
  context.rect(0, TOP, width, height - TOP);
  context.clip();
  const patterns = COLOURS.map(colour => hatch(context, colour));
  const last = Math.min(trace.data.rows.length, Math.ceil((top + height - TOP) / tall));
  for (let row = Math.floor(top / tall); row < last; row++) {
    paintRow(context, trace, seen, theme, row, patterns);
  }
  if (chosen >= 0) {
    paintChosen(context, trace, seen, theme, chosen);
  }
  context.restore();
}

/** The box of a call as left, top, width and height; it is at least a pixel wide. */
export function boxOf(trace: Trace, call: number, row: number, seen: IViewport): [number, number, number, number] {
  const tall = (callsHeight(trace, seen.row) - 4) / trace.lanes[row];
  const left = xOf(trace.began[call], seen);
  const y = TOP + row * seen.row - seen.top + 2 + trace.lane[call] * tall;
  return [left, y, Math.max(1, xOf(trace.ended[call], seen) - left), tall - (trace.lanes[row] > 1 ? 1 : 0)];
}

function paintTimes(context: CanvasRenderingContext2D, trace: Trace, seen: IViewport, theme: ITheme): void {
  const [from, to] = [trace.seconds(seen.start), trace.seconds(seen.end)];
  let step = 10 ** Math.floor(Math.log10((to - from) / 4));
  step *= [1, 2, 5, 10].find(factor => (to - from) / (step * factor) <= 8) ?? 10;
  context.textAlign = 'center';
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const x = Math.round(xOf(at / trace.data.tick, seen)) + 0.5;
    context.strokeStyle = theme.line;
    context.beginPath();
    context.moveTo(x, TOP);
    context.lineTo(x, seen.height);
    context.stroke();
    context.fillStyle = theme.faint;
    context.fillText(formatInterval(Math.round(at / step) * step), Math.min(x, seen.width - 24), TOP / 2);
  }
}

function paintRow(
  context: CanvasRenderingContext2D,
  trace: Trace,
  seen: IViewport,
  theme: ITheme,
  row: number,
  patterns: (CanvasPattern | string)[]
): void {
  const y = TOP + row * seen.row - seen.top;
  const { rank, began, ended } = trace.data.rows[row];
  const middle = y + callsHeight(trace, seen.row) / 2;
  const x = (seconds: number): number => Math.min(seen.width, Math.max(LEFT, xOf(seconds / trace.data.tick, seen)));
  context.strokeStyle = theme.faint;
  context.globalAlpha = 0.6;
  context.beginPath();
  context.moveTo(x(began), middle);
  context.lineTo(x(ended), middle);
  context.stroke();
  context.globalAlpha = 1;
  const until: number[] = [];
  const stop = trace.first[row + 1];
  for (let call = trace.from(row, seen.start); call < stop && trace.began[call] <= seen.end; call++) {
    const box = boxOf(trace, call, row, seen);
    const lane = trace.lane[call];
    if (box[0] + box[2] <= (until[lane] ?? -1)) {
      continue; // calls within one pixel are painted once
    }
    until[lane] = Math.floor(box[0] + box[2]);
    paintCall(context, trace, seen, theme, call, box, patterns);
  }
  paintOperators(context, trace, seen, theme.text, row);
  context.fillStyle = theme.ground;
  context.fillRect(0, y, LEFT - 4, seen.row);
  context.fillStyle = theme.text;
  context.textAlign = 'right';
  context.fillText(`rank ${rank}`, LEFT - 10, y + seen.row / 2);
}

function paintCall(
  context: CanvasRenderingContext2D,
  trace: Trace,
  seen: IViewport,
  theme: ITheme,
  call: number,
  [left, y, wide, tall]: [number, number, number, number],
  patterns: (CanvasPattern | string)[]
): void {
  const kind = trace.data.kinds[trace.kind[call]];
  const colour = kind.group % COLOURS.length;
  const start = Math.max(left, LEFT);
  const right = Math.min(left + wide, seen.width);
  const middle = Math.min(right, Math.max(start, xOf(trace.work[call], seen)));
  if (middle > start) {
    context.fillStyle = patterns[colour];
    context.fillRect(start, y, middle - start, tall);
    context.strokeStyle = COLOURS[colour];
    context.setLineDash(trace.isOpen(call) ? [3, 2] : []);
    if (middle - start > 3) {
      context.strokeRect(start + 0.5, y + 0.5, middle - start - 1, tall - 1);
    }
    context.setLineDash([]);
  }
  if (right > middle || wide <= 1) {
    context.fillStyle = COLOURS[colour];
    context.fillRect(middle, y, Math.max(right - middle, 1), tall);
  }
  if (tall < 10) {
    return;
  }
  context.textAlign = 'left';
  if (right - middle > kind.op.length * LETTER + 6) {
    context.fillStyle = '#fff';
    context.fillText(kind.op, middle + 4, y + tall / 2);
  } else if (middle - start > kind.op.length * LETTER + 6) {
    context.fillStyle = theme.text;
    context.fillText(kind.op, start + 4, y + tall / 2);
  }
}

/** Marks the calls that belong together, the moment at which the last rank arrived, and which rank that was. */
function paintChosen(
  context: CanvasRenderingContext2D,
  trace: Trace,
  seen: IViewport,
  theme: ITheme,
  chosen: number
): void {
  context.strokeStyle = theme.mark;
  const middles: number[] = [];
  for (const call of trace.partners(chosen)) {
    const row = trace.rowOf(call);
    const [left, y, wide, tall] = boxOf(trace, call, row, seen);
    middles.push(y + tall / 2);
    context.lineWidth = call === chosen ? 2.5 : 1.5;
    const from = Math.max(left, LEFT);
    context.strokeRect(from - 1, y - 1, Math.max(0, left + wide - from) + 2, tall + 2);
  }
  const last = trace.data.rows.findIndex(row => row.rank === trace.last[chosen]);
  if (last >= 0) {
    const x = xOf(trace.work[chosen], seen);
    const at = TOP + last * seen.row + callsHeight(trace, seen.row) / 2 - seen.top;
    context.lineWidth = 1.5;
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(x, Math.min(at, ...middles));
    context.lineTo(x, Math.max(at, ...middles));
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.arc(x, at, 4, 0, 2 * Math.PI);
    context.fillStyle = theme.mark;
    context.fill();
  }
  context.lineWidth = 1;
}

/** A pattern of slanted lines on a light ground of the same colour. */
function hatch(context: CanvasRenderingContext2D, colour: string): CanvasPattern | string {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 6;
  const inside = tile.getContext('2d');
  if (!inside) {
    return colour;
  }
  inside.globalAlpha = 0.15;
  inside.fillStyle = colour;
  inside.fillRect(0, 0, 6, 6);
  inside.globalAlpha = 0.6;
  inside.strokeStyle = colour;
  inside.lineWidth = 1.4;
  inside.beginPath();
  for (const shift of [-6, 0, 6]) {
    inside.moveTo(shift - 1, 7);
    inside.lineTo(shift + 7, -1);
  }
  inside.stroke();
  return context.createPattern(tile, 'repeat') ?? colour;
}
