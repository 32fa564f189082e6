import { Signal } from '@lumino/signaling';
import { beforeEach, describe, expect, it } from 'vitest';

import { ICluster } from '../src/api';
import { Selection } from '../src/panel/selection';
import { IClusters } from '../src/tokens';
import { cluster } from './samples';

class FakeClusters implements Pick<IClusters, 'changed' | 'current'> {
  current: ICluster | undefined;
  changed = new Signal<IClusters, { name: string; notices: string[] }>(this as unknown as IClusters);

  show(current: ICluster | undefined): void {
    this.current = current;
    this.changed.emit({ name: current?.name ?? '', notices: [] });
  }
}

describe('the selection', () => {
  let clusters: FakeClusters;
  let selection: Selection;
  let changes: number;

  beforeEach(() => {
    clusters = new FakeClusters();
    selection = new Selection(clusters);
    clusters.show(cluster({ name: 'a', world_size: 8 }));
    selection.select([5, 1]);
    changes = 0;
    selection.changed.connect(() => (changes += 1));
  });

  it('is sorted', () => expect(selection.ranks).toEqual([1, 5]));

  it('gains and loses ranks', () => {
    selection.toggle(3);
    selection.toggle(5);
    expect(selection.ranks).toEqual([1, 3]);
    expect([selection.has(3), selection.has(5)]).toEqual([true, false]);
    expect(changes).toBe(2);
  });

  it('stays while the same cluster is shown', () => {
    clusters.show(cluster({ name: 'a', world_size: 8, ready: 7 }));
    expect(selection.ranks).toEqual([1, 5]);
    expect(changes).toBe(0);
  });

  it('ends when another cluster is shown', () => {
    clusters.show(cluster({ name: 'b', world_size: 8 }));
    expect(selection.ranks).toEqual([]);
    expect(changes).toBe(1);
  });

  it('ends with the cluster', () => {
    clusters.show(undefined);
    expect(selection.ranks).toEqual([]);
  });

  it('loses the ranks that the world no longer has', () => {
    clusters.show(cluster({ name: 'a', world_size: 5 }));
    expect(selection.ranks).toEqual([1]);
    expect(changes).toBe(1);
  });

  it('keeps what a change of the view does not name', () => {
    selection.changeView({ filter: 'x' });
    selection.changeView({ isByNode: true });
    expect(selection.view).toEqual({ sort: 'rank', isDescending: false, isByNode: true, filter: 'x' });
    expect(changes).toBe(2);
  });
});
