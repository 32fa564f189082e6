/** Finds calls in the timeline: the one at a point, and the next one to the left, right, top or bottom. */

import { boxOf } from './paint';
import { Trace } from './trace';
import { IViewport, LEFT, MISS, momentAt, TOP } from './viewport';

/** The call at a point of the canvas; -1 if there is none. */
export function callAt(x: number, y: number, trace: Trace, seen: IViewport): number {
  const row = Math.floor((y - TOP + seen.top) / seen.row);
  if (y < TOP || x < LEFT || row < 0 || row >= trace.data.rows.length) {
    return -1;
  }
  let [best, nearest] = [-1, MISS + 1];
  const near = momentAt(x - MISS, seen);
  const stop = trace.first[row + 1];
  for (let call = trace.from(row, Math.max(0, near)); call < stop; call++) {
    const [left, top, wide, tall] = boxOf(trace, call, row, seen);
    if (left > x + MISS) {
      break;
    }
    const away = Math.max(left - x, x - left - wide, 0) + (y < top || y > top + tall ? 1 : 0);
    if (away < nearest) {
      [best, nearest] = [call, away];
    }
  }
  return best;
}

/** The first call of a row that has not ended before a moment. */
export function firstFrom(row: number, moment: number, trace: Trace): number {
  return Math.min(trace.from(row, Math.max(0, moment)), trace.began.length - 1);
}

/** The next or previous call of the same row; the call itself if there is none. */
export function beside(call: number, by: 1 | -1, trace: Trace): number {
  const row = trace.rowOf(call);
  const next = call + by;
  return next >= trace.first[row] && next < trace.first[row + 1] ? next : call;
}

/** The next rank's part of the same operation, else its call at the same time; the call itself if there is none. */
export function across(call: number, by: 1 | -1, trace: Trace): number {
  const count = trace.data.rows.length;
  let row = trace.rowOf(call) + by;
  while (row >= 0 && row < count && trace.first[row] === trace.first[row + 1]) {
    row += by;
  }
  if (row < 0 || row >= count) {
    return call;
  }
  const partner = trace.partners(call).find(each => trace.rowOf(each) === row);
  return partner ?? Math.min(trace.from(row, trace.began[call]), trace.first[row + 1] - 1);
}
