/** A run's calls by rank, as `application/vnd.jdist.trace.v1+json` has them (jdist/client/measure/columns.py). */

import { IOperatorData, Operators } from './operators';

export const TRACE_MIME = 'application/vnd.jdist.trace.v1+json';
export const TRACE_VERSION = 1;

export interface ICallKind {
  op: string;
  /** Its index in `groups`. */
  group: number;
  detail: string;
  bytes: number;
  line: number | null;
}

export interface ITraceRow {
  rank: number;
  node: string;
  calls: number;
  /** Seconds since the run's start. */
  began: number;
  ended: number;
  is_running: boolean;
  left_out: number;
  suffered: number;
  caused: number;
}

/** The trace as it is sent; the columns are compressed and base64-encoded. */
export interface ITraceData {
  version: number;
  cluster: string;
  cluster_id: string;
  run: number;
  headline: string;
  finding: string;
  notes: string[];
  span: number;
  tick: number;
  groups: string[];
  kinds: ICallKind[];
  whom: string[];
  rows: ITraceRow[];
  absent: Record<string, string>;
  columns: Record<string, string>;
  /** Of a profiled run. */
  operators?: IOperatorData;
}

/** The height of the part of a row that has the calls; operators are below it. */
export function callsHeight(trace: Trace, row: number): number {
  return trace.operators ? Math.round(row * CALLS_PART) : row;
}

const CALLS_PART = 0.45;

const OPEN = 1;
const ESTIMATE = 2;

/** The calls in columns, ordered by row and then by start. Times are in ticks since the run's start. */
export class Trace {
  static async from(data: ITraceData): Promise<Trace> {
    const operators = data.operators && new Operators(data.operators, await allUnpacked(data.operators.columns));
    return new Trace(data, await allUnpacked(data.columns), operators);
  }

  private constructor(
    readonly data: ITraceData,
    columns: Record<string, ArrayBuffer>,
    /** What main threads did, if the run was profiled. */
    readonly operators?: Operators
  ) {
    this.began = new Uint32Array(columns.began);
    this.work = new Uint32Array(columns.work);
    this.ended = new Uint32Array(columns.ended);
    this.waited = new Uint32Array(columns.waited);
    this.kind = new Uint16Array(columns.kind);
    this.number = new Uint32Array(columns.number);
    this.whom = new Uint16Array(columns.whom);
    this.last = new Int32Array(columns.last);
    this.meeting = new Uint32Array(columns.meeting);
    this._flags = new Uint8Array(columns.flags);
    this.first = new Uint32Array(data.rows.length + 1);
    data.rows.forEach((row, i) => (this.first[i + 1] = this.first[i] + row.calls));
    this.span = Math.max(1, Math.ceil(data.span / data.tick));
    this._upto = new Uint32Array(this.began.length);
    this.lane = new Uint8Array(this.began.length);
    this.lanes = new Uint8Array(data.rows.length);
    data.rows.forEach((_, row) => this._arrange(row));
    [this._members, this._firstMember] = this._meetings();
  }

  readonly began: Uint32Array;
  /** When all ranks had arrived: before that a call waits, from then on it works. */
  readonly work: Uint32Array;
  readonly ended: Uint32Array;
  readonly waited: Uint32Array;
  readonly kind: Uint16Array;
  readonly number: Uint32Array;
  readonly whom: Uint16Array;
  /** The rank that arrived last, if others waited for it; else -1. */
  readonly last: Int32Array;
  readonly meeting: Uint32Array;
  /** The index of the first call of each row; one more entry ends the last row. */
  readonly first: Uint32Array;
  /** The length of the run. */
  readonly span: number;
  /** Calls of one row that overlap are drawn in lanes of their own; `lanes` has the number of them by row. */
  readonly lane: Uint8Array;
  readonly lanes: Uint8Array;

  isOpen(call: number): boolean {
    return (this._flags[call] & OPEN) !== 0;
  }

  isEstimate(call: number): boolean {
    return (this._flags[call] & ESTIMATE) !== 0;
  }

  /** The row that holds a call. */
  rowOf(call: number): number {
    let [low, high] = [0, this.data.rows.length];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.first[middle] <= call) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /** The first call of a row that has not ended before a moment. */
  from(row: number, moment: number): number {
    let [low, high] = [this.first[row], this.first[row + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this._upto[middle] < moment) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /** The calls of all ranks that belong together with this one. */
  partners(call: number): Uint32Array {
    const meeting = this.meeting[call];
    return this._members.subarray(this._firstMember[meeting], this._firstMember[meeting + 1]);
  }

  seconds(ticks: number): number {
    return ticks * this.data.tick;
  }

  private _arrange(row: number): void {
    const ends: number[] = [];
    let latest = 0;
    for (let i = this.first[row]; i < this.first[row + 1]; i++) {
      latest = Math.max(latest, this.ended[i]);
      this._upto[i] = latest;
      let lane = ends.findIndex(end => end <= this.began[i]);
      lane = lane >= 0 ? lane : Math.min(ends.length, MOST_LANES - 1);
      ends[lane] = Math.max(ends[lane] ?? 0, this.ended[i]);
      this.lane[i] = lane;
    }
    this.lanes[row] = Math.max(1, ends.length);
  }

  private _meetings(): [Uint32Array, Uint32Array] {
    const count = this.meeting.reduce((most, each) => Math.max(most, each + 1), 0);
    const firsts = new Uint32Array(count + 1);
    this.meeting.forEach(each => firsts[each + 1]++);
    for (let i = 0; i < count; i++) {
      firsts[i + 1] += firsts[i];
    }
    const next = firsts.slice();
    const members = new Uint32Array(this.meeting.length);
    this.meeting.forEach((each, call) => (members[next[each]++] = call));
    return [members, firsts];
  }

  private readonly _flags: Uint8Array;
  /** For each call, the latest end of the row's calls up to it. */
  private readonly _upto: Uint32Array;
  private readonly _members: Uint32Array;
  private readonly _firstMember: Uint32Array;
}

const MOST_LANES = 4;

async function allUnpacked(columns: Record<string, string>): Promise<Record<string, ArrayBuffer>> {
  const held = Object.entries(columns).map(async ([name, text]) => [name, await unpacked(text)] as const);
  return Object.fromEntries(await Promise.all(held));
}

async function unpacked(text: string): Promise<ArrayBuffer> {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Response(stream).arrayBuffer();
}
