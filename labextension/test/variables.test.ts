import { describe, expect, it } from 'vitest';

import { formatBytes } from '../src/format';
import { bytes, comparison, numbers, shownVariables, SortKey, summary } from '../src/panel/variables/rows';
import { apart, binText, describe as describeBins } from '../src/panel/variables/bins';
import { IVariableRow, IVariantRow } from '../src/generated/server';
import { trans } from './samples';

function variant(changes: Partial<IVariantRow> = {}): IVariantRow {
  const kind = { type: 'Tensor', shape: [2, 3], dtype: 'float32', device: 'cpu', placement: '' };
  return { ranks: '0-3', ...kind, length: null, nbytes: [24, 24], value: '', detail: '', ...changes };
}

function variable(name: string, changes: Partial<IVariableRow> = {}): IVariableRow {
  return { name, comparison: 'alike', missing: '', size: 24, variants: [variant()], ...changes };
}

const ALL = [
  variable('model', { size: 900, variants: [variant({ type: 'Net' })] }),
  variable('loss', { size: 4 }),
  variable('loss_sum', { size: 8 })
];

function names(filter: string, sort: SortKey = 'name', isDescending = false): string[] {
  return shownVariables(ALL, { filter, sort, isDescending }).map(each => each.name);
}

describe('the table of variables', () => {
  it('is filtered by a part of the name or type, or by a pattern for all of it', () => {
    expect(names('')).toEqual(['loss', 'loss_sum', 'model']);
    expect(names('LOSS')).toEqual(['loss', 'loss_sum']);
    expect(names('loss*')).toEqual(['loss', 'loss_sum']);
    expect(names('los?')).toEqual(['loss']);
    expect(names('net')).toEqual(['model']);
    expect(names('(')).toEqual([]);
  });

  it('is sorted by a column, and by name where that is the same', () => {
    expect(names('', 'size', true)).toEqual(['model', 'loss_sum', 'loss']);
    expect(names('', 'type')).toEqual(['model', 'loss', 'loss_sum']);
    expect(names('', 'compared', true)).toEqual(['loss', 'loss_sum', 'model']);
  });

  it('says how the ranks compare', () => {
    expect(comparison(variable('x'), trans)).toBe('same metadata');
    expect(comparison(variable('x', { comparison: 'equal', missing: '2-3' }), trans)).toBe('equal · missing on 2-3');
    expect(comparison(variable('x', { comparison: '' }), trans)).toBe('');
  });

  it('describes values in short', () => {
    expect(summary(variant(), trans)).toBe('[2, 3] float32');
    expect(summary(variant({ shape: null, dtype: '', length: 1200 }), trans)).toBe('1200 items');
    expect(bytes(variant({ nbytes: [64, 2048] }))).toBe('64 B … 2 KiB');
    expect(bytes(variant({ nbytes: null }))).toBe('');
    expect(numbers({ mean: 0.123456, std: null, nan_count: 0, norm: 3 })).toEqual([
      ['mean', '0.12346'],
      ['norm', '3']
    ]);
  });

  it('has sizes in units of 1024', () => {
    expect([0, 1023, 1536, 212 * 2 ** 20, 1000 * 2 ** 30].map(formatBytes)).toEqual([
      '0 B',
      '1023 B',
      '1.5 KiB',
      '212 MiB',
      '1000 GiB'
    ]);
  });
});

describe('a histogram in words', () => {
  const histogram = {
    low: -1,
    high: 1,
    counts: [0, 3, 1, 0],
    nan: 2,
    negative_infinity: 0,
    positive_infinity: 1,
    outside: 0
  };

  it('has the ends of each bin and how many elements it has', () => {
    expect(binText(histogram, 1, trans)).toBe('-0.5 to 0: 3 elements, 75.0 %');
    expect(binText(histogram, 2, trans)).toBe('0 to 0.5: 1 element, 25.0 %');
    expect(binText({ ...histogram, low: -1.7e308, high: 1.7e308 }, 3, trans)).toContain('8.5e+307 to 1.7e+308');
  });

  it('says at once where most elements are', () => {
    expect(describeBins(histogram, trans)).toBe(
      '4 elements from -1 to 1 in 4 bins; the most from -0.5 to 0: 3 elements, 75.0 %'
    );
    expect(describeBins({ ...histogram, counts: [0, 0] }, trans)).toBe('0 elements from -1 to 1 in 2 bins');
  });

  it('counts what is in no bin', () => {
    expect(apart(histogram, trans)).toBe('2 NaN · 1 inf');
    expect(apart({ ...histogram, nan: 0, positive_infinity: 0 }, trans)).toBe('');
  });
});
