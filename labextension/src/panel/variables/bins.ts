/** What a histogram says in words: its ends, its bins, and what is in none of them. */

import { TranslationBundle } from '@jupyterlab/translation';

import { joinParts } from '../../format';
import { IHistogram } from '../../variables';

/** The number in at most four digits. */
export function short(value: number): string {
  return String(Number(value.toPrecision(4)));
}

/** The number of elements that are in a bin. */
export function total({ counts }: IHistogram): number {
  return counts.reduce((sum, each) => sum + each, 0);
}

/** The first of the bins with the most elements. */
export function highest({ counts }: IHistogram): number {
  return counts.indexOf(Math.max(...counts));
}

/** `0 to 0.125: 20 elements, 7.8 %`. */
export function binText(histogram: IHistogram, index: number, trans: TranslationBundle): string {
  const { low, high, counts } = histogram;
  // Each end by itself: the difference of the two may be too large for a number.
  const edge = (i: number): string => short(low * (1 - i / counts.length) + high * (i / counts.length));
  const share = (100 * counts[index]) / (total(histogram) || 1);
  const count = trans._n('%1 element', '%1 elements', counts[index]);
  return trans.__('%1 to %2: %3, %4 %', edge(index), edge(index + 1), count, share.toFixed(1));
}

/** What is seen at once: `256 elements from -1 to 1 in 32 bins, most of them 0 to 0.0625: 20 elements, 7.8 %`. */
export function describe(histogram: IHistogram, trans: TranslationBundle): string {
  const { low, high, counts } = histogram;
  const all = trans._n('%1 element', '%1 elements', total(histogram));
  const where = trans.__('%1 from %2 to %3 in %4 bins', all, short(low), short(high), counts.length);
  return total(histogram)
    ? trans.__('%1; the most from %2', where, binText(histogram, highest(histogram), trans))
    : where;
}

/** How many elements are in no bin: `3 NaN · 1 inf`; empty if all are in one. */
export function apart(histogram: IHistogram, trans: TranslationBundle): string {
  const { nan, negative_infinity: low, positive_infinity: high, outside } = histogram;
  const some = (count: number, text: string): string => (count ? text : '');
  return joinParts(
    some(nan, trans.__('%1 NaN', nan)),
    some(low, trans.__('%1 −inf', low)),
    some(high, trans.__('%1 inf', high)),
    some(outside, trans.__('%1 changed meanwhile', outside))
  );
}
