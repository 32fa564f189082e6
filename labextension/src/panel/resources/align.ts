/** Common times of nodes that measure at times of their own, since lines of one chart share their x. Pure. */

type Values = (number | null)[];

/** The common times, in seconds (0 is now, earlier is negative), and the values of a node at these. */
export interface ICommonTimes {
  x: number[];
  /** `node` is the index of its ages. */
  align: (node: number, values: Values) => Values;
}

/** The samples that stand for one entry: from the first up to, but without, the end. */
type Span = [number, number];

/**
 * The times of nodes whose samples have these ages. They are those of the samples where all nodes have the same, else
 * evenly spaced; an entry is then the mean of the samples around it, or the nearest sample that is not too far away.
 */
export function commonTimes(ages: number[][], seconds: number, points: number): ICommonTimes {
  const measured = ages.filter(each => each.length);
  if (measured.every(each => isSame(each, measured[0]))) {
    const seen = (measured[0] ?? []).filter(age => age <= seconds);
    const first = (measured[0]?.length ?? 0) - seen.length;
    const align = (node: number, values: Values): Values =>
      seen.map((_, i) => (ages[node].length ? (values[first + i] ?? null) : null));
    return { x: seen.map(age => -age), align };
  }
  const fastest = Math.min(...measured.map(spacing));
  const step = Math.max(seconds / points, finite(fastest));
  const count = Math.max(1, Math.round(seconds / step));
  const x = Array.from({ length: count }, (_, i) => -step * (count - 1 - i));
  const spans = ages.map(each => spansOf(each, x, step));
  return { x, align: (node, values) => spans[node].map(span => meanOf(values, span)) };
}

/** Whether the samples of two nodes were taken together. */
function isSame(one: number[], other: number[]): boolean {
  const most = 0.25 * spacing(other);
  return one.length === other.length && one.every((age, i) => Math.abs(age - other[i]) <= most);
}

/** The median of the seconds between two samples; Infinity for less than two. */
function spacing(ages: number[]): number {
  const between = ages.slice(1).map((age, i) => ages[i] - age);
  return between.length ? between.sort((a, b) => a - b)[Math.floor(between.length / 2)] : Infinity;
}

function finite(value: number): number {
  return Number.isFinite(value) ? value : 0;
}

/** The samples of a node at each of the times. */
function spansOf(ages: number[], x: number[], step: number): Span[] {
  const most = Math.max(step, finite(spacing(ages)));
  let [first, end] = [0, 0];
  return x.map(time => {
    while (first < ages.length && -ages[first] < time - step / 2) {
      first += 1;
    }
    end = Math.max(first, end);
    while (end < ages.length && -ages[end] < time + step / 2) {
      end += 1;
    }
    return end > first ? [first, end] : nearest(ages, time, first, most);
  });
}

/** The sample nearest to a time, which is that before `next` or `next` itself; none if it is further away than `most`. */
function nearest(ages: number[], time: number, next: number, most: number): Span {
  const far = (i: number): number => (i in ages ? Math.abs(-ages[i] - time) : Infinity);
  const found = far(next - 1) <= far(next) ? next - 1 : next;
  return far(found) <= most ? [found, found + 1] : [0, 0];
}

function meanOf(values: Values, [first, end]: Span): number | null {
  let [sum, count] = [0, 0];
  for (let i = first; i < end; i++) {
    const value = values[i];
    if (typeof value === 'number') {
      sum += value;
      count += 1;
    }
  }
  return count ? sum / count : null;
}
