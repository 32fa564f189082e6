import { describe, expect, it } from 'vitest';

import { ICluster } from '../src/api';
import { meshOffers } from '../src/toolbar/choices';
import { cluster, trans } from './samples';

function meshed(sizes: number[]): ICluster {
  const size = sizes.reduce((product, each) => product * each, 1);
  const mesh = { names: ['dp', 'tp'].slice(0, sizes.length), sizes };
  return cluster({ world_size: size, mesh });
}

describe('the coordinates of a mesh', () => {
  it('are offered with their ranks', () => {
    const labels = meshOffers(meshed([2, 2]), trans).map(each => each.label);
    expect(labels).toEqual(['dp=0: ranks 0-1', 'dp=1: ranks 2-3', 'tp=0: ranks 0,2', 'tp=1: ranks 1,3']);
  });

  it('beyond the first sixteen are asked for, and said to be there', () => {
    const offers = meshOffers(meshed([64]), trans);
    expect(offers).toHaveLength(17);
    expect(offers[16]).toEqual({ choice: 'some', label: 'dp=16 to dp=63: type one…' });
    expect(meshOffers(meshed([16]), trans)).toHaveLength(16);
  });
});
