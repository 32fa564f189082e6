/** The units of resources: how a value is written, and the numbers on an axis that begins at 0. Pure. */

import { TranslationBundle } from '@jupyterlab/translation';

import { formatBytes, formatRate, formatShare } from '../../format';
import { Quantity } from '../../generated/server';

/** The numbers on an axis: from 0 up to the last of them. */
export type Ticks = number[];

/** At most so many parts between two numbers on an axis. */
const MOST_PARTS = 4;
/** The same for times, and the seconds that may be between two. */
const MOST_TIMES = 5;
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900];
/** The least upper ends of axes: noise is not to look like load. */
const LEAST = { cores: 1, bytes: 64 * 2 ** 20, rate: 10_000 };

export interface IUnit {
  text: (value: number) => string;
  ticks: (most: number) => Ticks;
}

/** The unit in which a quantity is written. */
export function unitOf(quantity: Quantity, trans: TranslationBundle): IUnit {
  switch (quantity) {
    case 'cpu':
      return { text: value => formatCores(value, trans), ticks: most => decimalTicks(Math.max(most, LEAST.cores)) };
    case 'gpu':
      return { text: formatShare, ticks: () => [0, 0.5, 1] };
    case 'memory':
    case 'gpu_memory':
      return { text: formatBytes, ticks: most => binaryTicks(Math.max(most, LEAST.bytes)) };
    default:
      return { text: formatRate, ticks: most => decimalTicks(Math.max(most, LEAST.rate)) };
  }
}

/** `0.25 cores`, `1 core`, `63.5 cores`. */
function formatCores(value: number, trans: TranslationBundle): string {
  const rounded = Number(value.toFixed(value < 10 ? 2 : 1));
  return rounded === 1 ? trans.__('1 core') : trans.__('%1 cores', rounded);
}

/** Where an axis of time that ends now has its numbers, in seconds. */
export function timeTicks(seconds: number): number[] {
  const step = TIME_STEPS.find(each => seconds / each <= MOST_TIMES) ?? seconds / MOST_TIMES;
  const count = Math.floor(seconds / step);
  return Array.from({ length: count + 1 }, (_, i) => -step * (count - i) || 0);
}

/** `0.9–3.2 cores`, `900 kB/s – 1.2 MB/s`, or one text where both are the same. */
export function rangeText(low: string, high: string): string {
  const number = withoutUnit(low, high);
  return low === high ? low : number === low ? `${low} – ${high}` : `${number}–${high}`;
}

/** A text without its unit, if another one after it has the same. */
export function withoutUnit(text: string, next: string): string {
  const unitAt = text.lastIndexOf(' ');
  return unitAt > 0 && next.endsWith(text.slice(unitAt)) ? text.slice(0, unitAt) : text;
}

/** Numbers 1, 2 or 5 times a power of ten apart. */
function decimalTicks(most: number): Ticks {
  const power = 10 ** Math.floor(Math.log10(most / MOST_PARTS));
  return ticksUpTo(most, [power, 2 * power, 5 * power, 10 * power]);
}

/** Numbers a power of two apart. */
function binaryTicks(most: number): Ticks {
  const power = 2 ** Math.floor(Math.log2(most / MOST_PARTS));
  return ticksUpTo(most, [power, 2 * power]);
}

/** With the first of the steps that is wide enough. */
function ticksUpTo(most: number, steps: number[]): Ticks {
  const step = steps.find(each => most <= MOST_PARTS * each) ?? steps[steps.length - 1];
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, i) => i * step);
}
