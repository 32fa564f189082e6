/** Marks on a chart's x: thin lines with labels above the chart, and what lasts, shaded. */

import type uPlot from 'uplot';

import { colourOf, markColour, shadeColour } from './colours';

/** From one x to another; the label is replaced by the short one if not all labels have room. */
export interface IMark {
  from: number;
  to: number;
  label: string;
  short: string;
}

/** A label, and its left edge. */
export interface ILabel {
  text: string;
  left: number;
}

/** The pixels above a chart that labels need. */
export const LABELS_HEIGHT = 14;
const FONT = '10px system-ui, sans-serif';
/** Between two labels. */
const GAP = 6;
/** Between two numbers on an axis. */
const TICK_GAP = 4;
/** Lines that are closer would look like an area. */
const CLOSE = 3;

/**
 * The labels for marks at these places of a chart that is `width` wide, without overlaps: the short texts if the long
 * ones do not have room, and of these only as many as there is room for; later ones come first.
 */
export function placeLabels(
  marks: { at: number; label: string; short: string }[],
  width: number,
  widthOf: (text: string) => number
): ILabel[] {
  const sorted = [...marks].sort((a, b) => b.at - a.at);
  const long = placed(sorted.map(({ at, label }) => ({ at, text: label })), width, widthOf); // prettier-ignore
  return long.length === sorted.length
    ? long
    : placed(sorted.map(({ at, short }) => ({ at, text: short })), width, widthOf); // prettier-ignore
}

/** Those of the texts that have room, from the right to the left. */
function placed(texts: { at: number; text: string }[], width: number, widthOf: (text: string) => number): ILabel[] {
  let end = width;
  const found: ILabel[] = [];
  for (const { at, text } of texts) {
    const size = widthOf(text);
    const left = Math.min(Math.max(0, at), width - size);
    if (left + size <= end) {
      found.push({ text, left });
      end = left - GAP;
    }
  }
  return found;
}

/** The places of the lines: of lines that are too close together only the last one. */
export function placeLines(places: number[]): number[] {
  const found: number[] = [];
  for (const at of [...places].sort((a, b) => b - a)) {
    if (!found.length || found[found.length - 1] - at >= CLOSE) {
      found.push(at);
    }
  }
  return found;
}

/** Of texts around these places, those that do not touch the others: the first, the last, and what fits in between. */
export function withoutOverlaps(texts: string[], places: number[], widthOf: (text: string) => number): string[] {
  const last = texts.length - 1;
  const shown: number[] = [];
  for (const i of new Set([0, last, ...texts.keys()].filter(each => each in texts))) {
    const isFree = (other: number): boolean =>
      Math.abs(places[i] - places[other]) >= (widthOf(texts[i]) + widthOf(texts[other])) / 2 + TICK_GAP;
    if (shown.every(isFree)) {
      shown.push(i);
    }
  }
  return texts.map((text, i) => (shown.includes(i) ? text : ''));
}

/** Pixels of a chart's canvas for one of the page. */
function ratioOf(plot: uPlot): number {
  return (plot.constructor as typeof uPlot).pxRatio; // to import uPlot would fetch it before there is a chart
}

/** Draws the marks behind the lines of a chart. */
export function paintMarks(plot: uPlot, node: HTMLElement, marks: IMark[]): void {
  const { ctx } = plot;
  const ratio = ratioOf(plot);
  const [left, top, width, height] = [plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height].map(
    each => each / ratio
  );
  const seen = marks
    .map(mark => ({ ...mark, at: plot.valToPos(mark.from, 'x'), end: Math.min(width, plot.valToPos(mark.to, 'x')) }))
    .filter(({ at, end }) => end >= 0 && at <= width);
  ctx.save();
  ctx.scale(ratio, ratio);
  ctx.translate(left, top);
  ctx.setLineDash([]); // uPlot leaves what it has set for its own lines and texts
  ctx.lineWidth = 1;
  ctx.textAlign = 'left';
  ctx.fillStyle = shadeColour(node);
  ctx.beginPath(); // one path, so that the part where runs overlap is not darker
  for (const { at, end } of seen) {
    ctx.rect(Math.max(0, at), 0, end - Math.max(0, at), height);
  }
  ctx.fill();
  ctx.strokeStyle = markColour(node);
  ctx.beginPath();
  for (const at of placeLines(seen.map(each => each.at).filter(each => each >= 0))) {
    ctx.moveTo(Math.round(at) + 0.5, -LABELS_HEIGHT / 3);
    ctx.lineTo(Math.round(at) + 0.5, height);
  }
  ctx.stroke();
  ctx.font = FONT;
  ctx.fillStyle = colourOf(node, 'text');
  ctx.textBaseline = 'bottom';
  for (const { text, left } of placeLabels(seen, width, text => ctx.measureText(text).width)) {
    ctx.fillText(text, left, -2);
  }
  ctx.restore();
}

/** Draws a dashed line at a height of the chart. */
export function paintLevel(plot: uPlot, node: HTMLElement, level: number): void {
  const { ctx, bbox } = plot;
  const ratio = ratioOf(plot);
  const y = Math.round(plot.valToPos(level, 'y', true)) + 0.5;
  ctx.save();
  ctx.strokeStyle = colourOf(node, 'text');
  ctx.lineWidth = ratio;
  ctx.setLineDash([4 * ratio, 4 * ratio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}
