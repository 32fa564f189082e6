import { describe, expect, it } from 'vitest';

import { findAttached, toldIn } from '../src/toolbar/attached';
import { cluster } from './samples';

const NOW = cluster({ cluster: 'second' });
const clusters = { get: (name: string) => (name === 'c1' ? NOW : undefined) };

describe("the notebook's cluster", () => {
  it('is found by its name and its id', () => {
    expect(findAttached({ name: 'c1', id: 'second' }, clusters)).toBe(NOW);
  });

  it('is not another one that has its name now', () => {
    expect(findAttached({ name: 'c1', id: 'first' }, clusters)).toBeUndefined();
  });

  it('is found by its name where one of the ids is not known', () => {
    expect(findAttached({ name: 'c1', id: '' }, clusters)).toBe(NOW);
    const starting = { ...NOW, cluster: '' };
    expect(findAttached({ name: 'c1', id: 'first' }, { get: () => starting })).toBe(starting);
  });

  it('is none if the kernel has told so', () => {
    expect(toldIn({ cluster: null, id: null })).toEqual({ name: '', id: '', isAuto: false });
    expect(findAttached(toldIn({}), clusters)).toBeUndefined();
    expect(toldIn({ cluster: 'c1', id: 'first' })).toEqual({ name: 'c1', id: 'first', isAuto: false });
    expect(toldIn({ cluster: 'c1', id: 'first', is_auto: true }).isAuto).toBe(true);
  });
});
