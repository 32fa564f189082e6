import { deflateSync } from 'node:zlib';
import { beforeAll, describe, expect, it } from 'vitest';

import { describeCall } from '../src/timeline/describe';
import { across, beside, callAt, firstFrom } from '../src/timeline/find';
import { boxOf } from '../src/timeline/paint';
import { operatorAt, operatorBox, paintOperators } from '../src/timeline/paintoperators';
import { callsHeight, ITraceData, Trace } from '../src/timeline/trace';
import { IViewport, LEFT, momentAt, TOP, xOf } from '../src/timeline/viewport';
import { trans } from './samples';

const packed = (values: ArrayLike<number> & ArrayBufferView): string =>
  deflateSync(new Uint8Array(values.buffer)).toString('base64');

/** Three ranks. 0 and 2 call twice and meet; 1 has two calls that overlap, and 3 has none. */
const CALLS = [
  // row, began, work, ended, meeting
  [0, 0, 80, 100, 0],
  [0, 200, 200, 300, 1],
  [1, 10, 80, 90, 0],
  [1, 50, 50, 60, 2],
  [3, 80, 80, 100, 0],
  [3, 250, 250, 320, 1]
];

const row = (rank: number) => ({
  rank,
  node: '0',
  calls: CALLS.filter(call => call[0] === rank).length,
  began: 0,
  ended: 0.4,
  is_running: false,
  left_out: 0,
  suffered: 0,
  caused: 0
});

const DATA: ITraceData = {
  version: 1,
  cluster: 'c1',
  run: 7,
  headline: '',
  finding: '',
  notes: [],
  span: 0.4,
  tick: 0.001,
  groups: ['world'],
  kinds: [{ op: 'all_reduce', group: 0, detail: 'float32 [1]', bytes: 4096, line: 3 }],
  whom: ['', 'for rank 3'],
  rows: [0, 1, 2, 3].map(row),
  absent: {},
  columns: {
    began: packed(Uint32Array.from(CALLS, call => call[1])),
    work: packed(Uint32Array.from(CALLS, call => call[2])),
    ended: packed(Uint32Array.from(CALLS, call => call[3])),
    waited: packed(Uint32Array.from(CALLS, call => call[2] - call[1])),
    kind: packed(new Uint16Array(CALLS.length)),
    number: packed(Uint32Array.from(CALLS, (_, i) => i)),
    whom: packed(Uint16Array.from(CALLS, call => (call[2] > call[1] ? 1 : 0))),
    last: packed(Int32Array.from(CALLS, call => (call[2] > call[1] ? 3 : -1))),
    meeting: packed(Uint32Array.from(CALLS, call => call[4])),
    flags: packed(Uint8Array.from([0, 1, 2, 0, 0, 0]))
  }
};

/** All 400 ticks, two pixels each. */
const VIEWPORT: IViewport = { start: 0, end: 400, top: 0, width: LEFT + 800, height: TOP + 80, row: 20 };

let trace: Trace;
beforeAll(async () => {
  trace = await Trace.from(DATA);
});

describe('a trace', () => {
  it('knows the row of each call', () => {
    expect([0, 1, 2, 3, 4, 5].map(call => trace.rowOf(call))).toEqual([0, 0, 1, 1, 3, 3]);
    expect([...trace.first]).toEqual([0, 2, 4, 4, 6]);
  });

  it('puts calls that overlap into lanes', () => {
    expect([...trace.lanes]).toEqual([1, 2, 1, 1]);
    expect([...trace.lane]).toEqual([0, 0, 0, 1, 0, 0]);
  });

  it('knows which calls belong together', () => {
    expect([...trace.partners(2)]).toEqual([0, 2, 4]);
    expect([...trace.partners(5)]).toEqual([1, 5]);
    expect([...trace.partners(3)]).toEqual([3]);
  });

  it('finds the first call that has not ended before a moment', () => {
    expect([0, 100, 101, 300, 301].map(moment => trace.from(0, moment))).toEqual([0, 0, 1, 1, 2]);
    expect(trace.from(1, 70)).toBe(2); // the longer one, although the other one began later
  });

  it('measures time in ticks', () => {
    expect(trace.span).toBe(400);
    expect(trace.seconds(250)).toBe(0.25);
  });
});

describe('the layout', () => {
  it('maps moments to pixels and back', () => {
    expect(xOf(0, VIEWPORT)).toBe(LEFT);
    expect(xOf(200, VIEWPORT)).toBe(LEFT + 400);
    expect(momentAt(LEFT + 400, VIEWPORT)).toBe(200);
    const zoomed = { ...VIEWPORT, start: 100, end: 200 };
    expect(xOf(150, zoomed)).toBe(LEFT + 400);
    expect(momentAt(xOf(133, zoomed), zoomed)).toBeCloseTo(133);
  });

  it('gives each call a box in its row', () => {
    expect(boxOf(trace, 1, 0, VIEWPORT)).toEqual([LEFT + 400, TOP + 2, 200, 16]);
    expect(boxOf(trace, 4, 3, { ...VIEWPORT, top: 15 })).toEqual([LEFT + 160, TOP + 60 - 15 + 2, 40, 16]);
  });

  it('divides the row between lanes', () => {
    expect(boxOf(trace, 2, 1, VIEWPORT)).toEqual([LEFT + 20, TOP + 22, 160, 7]);
    expect(boxOf(trace, 3, 1, VIEWPORT)).toEqual([LEFT + 100, TOP + 30, 20, 7]);
  });

  it('makes a box at least a pixel wide', () => {
    expect(boxOf(trace, 3, 1, { ...VIEWPORT, end: 400_000 })[2]).toBe(1);
  });
});

describe('the call at a point', () => {
  const at = (x: number, y: number): number => callAt(LEFT + x, TOP + y, trace, VIEWPORT);

  it('is the one whose box is there', () => {
    expect(at(10, 10)).toBe(0);
    expect(at(450, 10)).toBe(1);
    expect(at(170, 70)).toBe(4);
  });

  it('is that of the lane', () => {
    expect(at(110, 25)).toBe(2);
    expect(at(110, 33)).toBe(3);
  });

  it('may be missed by some pixels', () => {
    expect(at(397, 10)).toBe(1);
    expect(at(395, 10)).toBe(-1);
  });

  it('is none in an empty row, in the margins and below', () => {
    expect(at(170, 50)).toBe(-1);
    expect(at(-1, 10)).toBe(-1);
    expect(at(10, -1)).toBe(-1);
    expect(at(10, 85)).toBe(-1);
  });
});

describe('the next call', () => {
  it('to the side stays in the row', () => {
    expect([beside(0, 1, trace), beside(1, 1, trace), beside(1, -1, trace), beside(0, -1, trace)]).toEqual([
      1, 1, 0, 0
    ]);
  });

  it('of another rank is the part of the same operation; rows without calls are skipped', () => {
    expect([across(0, 1, trace), across(2, 1, trace), across(4, -1, trace)]).toEqual([2, 4, 2]);
  });

  it('of another rank is that of the same time where there is no part of the same operation', () => {
    expect(across(3, 1, trace)).toBe(4);
    expect(across(1, 1, trace)).toBe(3);
  });

  it('ends at the first and the last rank', () => expect([across(0, -1, trace), across(5, 1, trace)]).toEqual([0, 5]));

  it('from a moment on is the first that has not ended', () => expect(firstFrom(0, 150, trace)).toBe(1));
});

describe('the description of a call', () => {
  it('says what it was, and for whom it waited', () => {
    expect(describeCall(2, trace, trans).split('\n')).toEqual([
      'rank 1: all_reduce #2 of world',
      `float32 [1] · ${(4096).toLocaleString()} bytes`,
      'cell line 3',
      'at 10 ms, for 80 ms',
      'waited ≈ 70 ms for rank 3'
    ]);
  });

  it('says that its end was not seen, and nothing of waiting if it did not wait', () => {
    const text = describeCall(1, trace, trans);
    expect(text).toContain('at 200 ms, for 100 ms, its end was not seen');
    expect(text).not.toContain('waited');
  });
});

describe('operators', () => {
  /** Of rank 0, two that are nested and one after them; of rank 2, one. */
  const OPERATORS: [number, number, number, number][] = [
    [100, 200, 0, 0],
    [110, 150, 1, 1],
    [300, 320, 1, 0],
    [0, 80, 2, 0]
  ];
  const profiled: ITraceData = {
    ...DATA,
    operators: {
      names: ['aten::linear', 'aten::mm', 'DataLoader'],
      counts: [3, 0, 0, 1],
      left_out: 7,
      columns: {
        began: packed(Uint32Array.from(OPERATORS, each => each[0])),
        ended: packed(Uint32Array.from(OPERATORS, each => each[1])),
        name: packed(Uint32Array.from(OPERATORS, each => each[2])),
        depth: packed(Uint8Array.from(OPERATORS, each => each[3]))
      }
    }
  };
  const tall: IViewport = { ...VIEWPORT, row: 60, height: TOP + 240 };
  let found: Trace;
  beforeAll(async () => {
    found = await Trace.from(profiled);
  });

  it('are below the calls, a band for each level', () => {
    const calls = callsHeight(found, 60);
    expect(calls).toBeLessThan(30);
    const [left, top, wide, high] = operatorBox(found, 0, 0, tall);
    expect([left, top, wide]).toEqual([LEFT + 200, TOP + calls, 200]);
    expect(boxOf(found, 0, 0, tall)[1] + boxOf(found, 0, 0, tall)[3]).toBeLessThan(top);
    expect(operatorBox(found, 1, 0, tall)[1]).toBeGreaterThan(top + high);
    expect(operatorBox(found, 3, 3, tall)[1]).toBe(top + 180);
    expect(callsHeight(trace, 60)).toBe(60);
  });

  it('are found by a point', () => {
    const middle = ([left, top, wide, high]: number[]): [number, number] => [left + wide / 2, top + high / 2];
    for (const [operator, row] of [
      [0, 0],
      [1, 0],
      [2, 0],
      [3, 3]
    ]) {
      expect(operatorAt(...middle(operatorBox(found, operator, row, tall)), found, tall)).toEqual([row, operator]);
    }
    expect(operatorAt(LEFT + 500, TOP + 50, found, tall)).toBeUndefined();
    expect(operatorAt(LEFT + 250, TOP + 5, found, tall)).toBeUndefined();
    expect(operatorAt(LEFT + 250, TOP + 40, trace, tall)).toBeUndefined();
  });

  it('say what they are', () => {
    expect(found.operators?.describe(1, 0, 0.001, trans)).toBe('rank 0: aten::mm\nat 110 ms, for 40 ms');
  });

  it('are painted where they are visible, with their names where there is room', () => {
    const boxes: number[][] = [];
    const texts: string[] = [];
    const context = {
      fillRect: (...box: number[]) => boxes.push(box),
      fillText: (text: string) => texts.push(text)
    } as unknown as CanvasRenderingContext2D;
    paintOperators(context, found, tall, '#000', 0);
    expect(boxes.map(box => box[0])).toEqual([LEFT + 200, LEFT + 220, LEFT + 600]);
    expect(texts).toEqual(['aten::linear', 'aten::mm']);
    boxes.length = 0;
    paintOperators(context, found, { ...tall, start: 250, end: 310 }, '#000', 0);
    expect(boxes.length).toBe(1);
    paintOperators(context, trace, tall, '#000', 0);
    expect(boxes.length).toBe(1);
  });
});
