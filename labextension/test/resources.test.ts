import { describe, expect, it } from 'vitest';

import { commonTimes } from '../src/panel/resources/align';
import { chartGroups, IResourceChart } from '../src/panel/resources/lines';
import { subjectsOf } from '../src/panel/resources/subjects';
import { By } from '../src/panel/resources/view';
import { INodeSeries, IResourcesSnapshot, Quantity } from '../src/generated/server';
import { GIB, node, resources, trans } from './samples';

function chart(
  found: IResourcesSnapshot,
  quantity: Quantity,
  by: By = 'rank',
  selected: number[] = []
): IResourceChart {
  const all = chartGroups(found, by, selected, trans).flatMap(({ charts }) => charts);
  return all.find(each => each.quantity === quantity)!;
}

function lines({ data }: IResourceChart): unknown[] {
  return data.lines.map(({ label, role, order }) => [label, role, order].filter(each => each !== undefined).join(' '));
}

/** Eight nodes of eight ranks. */
const MANY = resources({
  nodes: Array.from({ length: 8 }, (_, n) =>
    node(n, {
      ranks: Array.from({ length: 8 }, (_, i) => ({ rank: 8 * n + i, series: { cpu: [8 * n + i, 1] } }))
    })
  )
});

describe('times that nodes have in common', () => {
  it('are those of the samples of one node', () => {
    const { x, align } = commonTimes([[4.5, 2, 0.5]], 60, 120);
    expect(x).toEqual([-4.5, -2, -0.5]);
    expect(align(0, [1, null, 3])).toEqual([1, null, 3]);
    expect(align(0, [1])).toEqual([1, null, null]);
  });

  it('reach as far back as was asked for', () => {
    const { x, align } = commonTimes([[60.4, 59.9, 30]], 60, 120);
    expect(x).toEqual([-59.9, -30]);
    expect(align(0, [1, 2, 3])).toEqual([2, 3]);
  });

  it('are those of all nodes that measure together, also beside one without samples', () => {
    const { x, align } = commonTimes([[2, 1], [], [2.1, 0.9]], 60, 120);
    expect(x).toEqual([-2, -1]);
    expect([align(0, [1, 2]), align(1, []), align(2, [3, 4])]).toEqual([
      [1, 2],
      [null, null],
      [3, 4]
    ]);
  });

  it('are evenly spaced otherwise, with the mean of the samples around each', () => {
    const { x, align } = commonTimes([[4, 3, 2, 1, 0], [3.9, 2.4, 1.9, 0]], 5, 5); // prettier-ignore
    expect(x.map(each => each || 0)).toEqual([-4, -3, -2, -1, 0]);
    expect(align(0, [1, 2, 3, 4, 5])).toEqual([1, 2, 3, 4, 5]);
    expect(align(1, [10, 20, 40, 80])).toEqual([10, 20, 30, 40, 80]);
  });

  it('leave a gap where a node has no sample nearby, and where all are unknown', () => {
    const slow = commonTimes([[9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [9.1, 8.2, 1.1, 0.2]], 10, 10); // prettier-ignore
    expect(slow.align(1, [1, 2, 3, 4])).toEqual([1, 2, null, null, null, null, null, 3, 3, 4]);
    expect(slow.align(1, [1, null, 3, 4])[1]).toBeNull();
  });

  it('follow the node that measures most often, with the values of others again and again', () => {
    const { x, align } = commonTimes([[4, 3, 2, 1, 0], [3, 0]], 5, 50); // prettier-ignore
    expect(x).toHaveLength(5);
    expect(align(1, [7, 9])).toEqual([7, 7, 7, 9, 9]);
  });

  it('are none as long as nothing was measured', () => {
    expect(commonTimes([[]], 60, 120).x).toEqual([]);
    expect(commonTimes([], 60, 120).x).toEqual([]);
    const { x, align } = commonTimes([[30], [1, 0]], 60, 2); // prettier-ignore
    expect(x.every(Number.isFinite)).toBe(true);
    expect(align(0, [1])).toContain(1);
  });
});

describe('what is drawn', () => {
  it('has a line for each of a few ranks', () => {
    const found = chart(resources({ nodes: [node(1), node(0)] }), 'cpu');
    expect(lines(found)).toEqual(['rank 0 own 0', 'rank 1 own 1', 'rank 2 own 2', 'rank 3 own 3']);
    expect(found.data.band).toBeUndefined();
    expect([found.mean, found.low, found.high]).toEqual([
      [1.5, 2.5],
      [0, 1],
      [3, 4]
    ]);
  });

  it('has selected ranks in front of the others', () => {
    const found = chart(resources({ nodes: [node(0), node(1)] }), 'cpu', 'rank', [1]);
    expect(lines(found)).toEqual(['rank 0 faint', 'rank 2 faint', 'rank 3 faint', 'rank 1 own 1']);
    expect(lines(chart(resources({ nodes: [node(0), node(1)] }), 'sent', 'rank', [1]))).toEqual([
      'node 1 (host-1) faint',
      'node 0 (host-0) own 0'
    ]);
  });

  it('is the range of many ranks, and the selected ones', () => {
    const found = chart(MANY, 'cpu', 'rank', [9, 3]);
    expect(lines(found)).toEqual(['mean main', 'rank 3 own 1', 'rank 9 own 2']);
    expect(found.data.band).toEqual({ low: [0, 1], high: [63, 1] });
    expect(found.subjects).toHaveLength(64);
  });

  it('is the range of the selected ranks if these are many', () => {
    const selected = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    const found = chart(MANY, 'cpu', 'rank', selected);
    expect(lines(found)).toEqual(['mean main']);
    expect(found.data.band?.high).toEqual([9, 1]);
    expect(subjectsOf(MANY, 'rank', new Set(selected), trans)).toMatchObject({ of: 64, isBand: true });
  });

  it('is by node for what is known of nodes only, and says so', () => {
    const groups = chartGroups(resources(), 'rank', [], trans);
    expect(groups.map(({ subjects, note, charts }) => [subjects.by, note !== '', charts.map(each => each.quantity)])).toEqual([
      ['rank', false, ['cpu', 'memory']],
      ['node', true, ['received', 'sent']]
    ]); // prettier-ignore
    const [all, ...others] = chartGroups(resources(), 'node', [], trans);
    expect(others).toEqual([]);
    expect(all.note).toBe('');
    expect(all.charts.map(each => each.quantity)).toEqual(['cpu', 'memory', 'received', 'sent']);
  });

  it('leaves out charts and lines without any data', () => {
    const gpu = { gpu: [null, 0.5], gpu_memory: [null, null] };
    const one = node(0, { gpus: 1, ranks: [{ rank: 0, series: gpu }, { rank: 1, series: {} }] }); // prettier-ignore
    const found = resources({ nodes: [one] });
    expect(lines(chart(found, 'gpu'))).toEqual(['rank 0 own 0']);
    expect(chart(found, 'gpu').data.lines[0].values).toEqual([null, 0.5]);
    expect(chart(found, 'gpu_memory')).toBeUndefined();
    expect(chart(found, 'cpu')).toBeUndefined();
    expect(chartGroups(resources({ nodes: [] }), 'rank', [], trans)).toEqual([]);
  });

  it('has an axis from 0, and the total if that is near', () => {
    const near = chart(resources(), 'cpu', 'node');
    expect(near.data.level).toBe(8);
    expect(near.data.yAxis).toEqual({ range: [0, 8], ticks: [0, 2, 4, 6, 8] });
    const far = chart(resources({ nodes: [node(0, { cores: 64 })] }), 'cpu', 'node');
    expect(far.data.level).toBeUndefined();
    expect(far.data.yAxis?.range[1]).toBeLessThan(6);
    expect(far.total).toEqual([64, 64]);
  });

  it('knows what a rank can use of the GPUs of its node, and nothing of a total that is unknown', () => {
    const nodes = (gpus: number): INodeSeries[] => [
      node(0, {
        gpus,
        gpu_memory_total: 160 * GIB,
        series: { gpu_memory: [GIB, GIB], received: [1, 1] },
        ranks: [{ rank: 0, series: { gpu_memory: [GIB, GIB] } }]
      })
    ];
    expect(chart(resources({ nodes: nodes(2) }), 'gpu_memory').total).toEqual([80 * GIB, 80 * GIB]);
    expect(chart(resources({ nodes: nodes(2) }), 'gpu_memory', 'node').total).toEqual([160 * GIB, 160 * GIB]);
    expect(chart(resources({ nodes: nodes(2) }), 'received').total).toBeNull();
    const unknown = [node(0), node(1, { cores: 0 })];
    expect(chart(resources({ nodes: unknown }), 'cpu', 'node').total).toBeNull();
    const mixed = [node(0), node(1, { cores: 16 })];
    expect(chart(resources({ nodes: mixed }), 'cpu', 'node').total).toEqual([8, 16]);
    expect(chart(resources({ nodes: mixed }), 'cpu', 'node').data.level).toBeUndefined();
  });

  it('marks runs from their begin to their end', () => {
    const runs = [
      { run: 7, ranks: '0-1', began: 20, ended: 10 },
      { run: 8, ranks: '0-1', began: 5, ended: null }
    ];
    expect(chart(resources({ runs }), 'cpu').data.marks).toEqual([
      { from: -20, to: -10, label: 'run 7', short: '7' },
      { from: -5, to: -0, label: 'run 8', short: '8' }
    ]);
    expect(chart(resources(), 'cpu').data.xAxis?.range).toEqual([-60, 0]);
  });
});
