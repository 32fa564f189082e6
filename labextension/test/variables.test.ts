import { describe, expect, it } from 'vitest';

import { formatBytes } from '../src/format';
import { bytes, comparison, numbers, shownVariables, SortKey, summary } from '../src/panel/variables/rows';
import { IVariable, IVariant } from '../src/variables';
import { trans } from './samples';

function variant(changes: Partial<IVariant> = {}): IVariant {
  const kind = { type: 'Tensor', shape: [2, 3], dtype: 'float32', device: 'cpu', placement: '' };
  return { ranks: '0-3', ...kind, length: null, nbytes: [24, 24], value: '', detail: '', ...changes };
}

function variable(name: string, changes: Partial<IVariable> = {}): IVariable {
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
