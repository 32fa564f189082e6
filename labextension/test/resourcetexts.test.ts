import { describe as suite, expect, it } from 'vitest';

import { formatRate } from '../src/format';
import { chartGroups, IResourceChart } from '../src/panel/resources/lines';
import { describe, labelOf, summaryOf, tickText, timeText, windowText } from '../src/panel/resources/texts';
import { rangeText, timeTicks, unitOf } from '../src/panel/resources/units';
import { By, ResourceView } from '../src/panel/resources/view';
import { IResourcesSnapshot, Quantity } from '../src/generated/server';
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

function ticks(quantity: Quantity, most: number): string[] {
  const unit = unitOf(quantity, trans);
  return unit.ticks(most).map(unit.text);
}

const MANY = resources({ nodes: Array.from({ length: 6 }, (_, n) => node(n)) });
const RUNS = [
  { run: 7, ranks: '0-1', began: 30, ended: 1.5 },
  { run: 8, ranks: '0', began: 1.2, ended: null }
];

suite('numbers on an axis', () => {
  it('are few, round in their unit, and end above the data', () => {
    expect(ticks('cpu', 3.3)).toEqual(['0 cores', '1 core', '2 cores', '3 cores', '4 cores']);
    expect(ticks('cpu', 64)).toEqual(['0 cores', '20 cores', '40 cores', '60 cores', '80 cores']);
    expect(ticks('memory', 18 * GIB)).toEqual(['0 B', '8 GiB', '16 GiB', '24 GiB']);
    expect(ticks('gpu', 0.2)).toEqual(['0 %', '50 %', '100 %']);
    expect(ticks('received', 1.2e9)).toEqual(['0 B/s', '500 MB/s', '1 GB/s', '1.5 GB/s']);
    for (const most of [1, 1.5, 2, 3.999, 4, 7, 8.01, 9.99, 63, 1e6, 123456789]) {
      for (const quantity of ['cpu', 'memory', 'sent'] as const) {
        const found = unitOf(quantity, trans).ticks(most);
        expect(found[found.length - 1]).toBeGreaterThanOrEqual(most);
        expect(found.length).toBeGreaterThan(2);
        expect(found.length).toBeLessThan(6);
      }
    }
  });

  it('do not show noise as load', () => {
    expect(ticks('cpu', 0)).toContain('1 core');
    expect(ticks('memory', 0)).toContain('64 MiB');
    expect(ticks('sent', 12)).toContain('10 kB/s');
  });

  it('have a unit once', () => {
    const memory = chart(resources({ nodes: [node(0, { memory_total: 0 })] }), 'memory');
    expect(memory.data.yAxis!.ticks.map(each => tickText(each, memory, trans))).toEqual(['0', '512 MiB', '1', '1.5', '2 GiB']); // prettier-ignore
  });

  it('say when, up to now', () => {
    for (const [seconds, texts] of [
      [60, ['−60 s', '−45', '−30', '−15', 'now']],
      [300, ['−5 min', '−4', '−3', '−2', '−1', 'now']],
      [900, ['−15 min', '−12', '−9', '−6', '−3', 'now']],
      [3600, ['−60 min', '−45', '−30', '−15', 'now']]
    ] as [number, string[]][]) {
      expect(timeTicks(seconds).map(each => timeText(each, seconds, trans))).toEqual(texts);
    }
    expect([60, 300, 3600].map(each => windowText(each, trans))).toEqual(['1 min', '5 min', '1 h']);
  });
});

suite('the values of a chart', () => {
  it('are ranges with one unit, of what there is', () => {
    expect(rangeText('1 GiB', '2 GiB')).toBe('1–2 GiB');
    expect(rangeText('900 kB/s', '1 MB/s')).toBe('900 kB/s – 1 MB/s');
    expect(rangeText('2 cores', '2 cores')).toBe('2 cores');
    expect(summaryOf(chart(resources(), 'memory', 'node'), 1, trans)).toBe('12 of 64 GiB');
    expect(summaryOf(chart(resources(), 'cpu'), 0, trans)).toBe('0 cores – 1 core of 8 cores');
    expect(summaryOf(chart(MANY, 'cpu', 'rank'), 1, trans)).toBe('1 core – 12 of 8 cores');
    expect(summaryOf(chart(resources(), 'received', 'node'), 1, trans)).toBe('2 MB/s');
    expect(summaryOf(chart(resources(), 'cpu'), 9, trans)).toBe('');
  });

  it('are listed by rank with their lines, the selected ones first', () => {
    const found = describe(chart(resources(), 'cpu', 'rank', [1]), 0, [], trans);
    expect(found.head).toBe('2 s ago');
    expect(found.rows).toEqual([
      { text: 'rank 1: 1 core', line: { role: 'own', order: 1 } },
      { text: 'rank 0: 0 cores', line: undefined }
    ]);
  });

  it('name the runs of that time', () => {
    const heads = [0, 1].map(index => describe(chart(resources(), 'cpu'), index, RUNS, trans).head);
    expect(heads).toEqual(['2 s ago · run 7 on 0-1', '1 s ago · run 8 on 0']);
  });

  it('begin with the mean and the range of many, and which ranks these are', () => {
    const rows = describe(chart(MANY, 'cpu'), 1, [], trans).rows.map(row => (typeof row === 'string' ? row : row.text));
    expect(rows.slice(0, 4)).toEqual([
      'mean 6.5 cores',
      'lowest 1 core (rank 0)',
      'highest 12 cores (rank 11)',
      'rank 0: 1 core'
    ]);
    expect(rows).toHaveLength(15);
  });

  it('of hundreds of ranks are cut off', () => {
    const nodes = Array.from({ length: 50 }, (_, n) => node(n));
    const { rows } = describe(chart(resources({ nodes }), 'cpu', 'rank', [99]), 0, [], trans);
    expect(rows).toHaveLength(3 + 64 + 1);
    expect(rows[3]).toMatchObject({ text: 'rank 99: 99 cores' });
    expect(rows[67]).toEqual({ text: '… and 36 more' });
  });

  it('are told to screen readers', () => {
    expect(labelOf(chart(resources(), 'cpu'), 300, RUNS, trans)).toBe(
      'CPU of 2 ranks in the last 5 min. Newest: rank 0 1 core, rank 1 2 cores. run 8 is active. ' +
        'The arrow keys read earlier values.'
    );
    expect(labelOf(chart(MANY, 'cpu', 'rank', [3]), 3600, [], trans)).toContain(
      'CPU of 12 ranks in the last 1 h. Newest: mean 6.5 cores, lowest 1 core (rank 0), highest 12 cores (rank 11), ' +
        'rank 3 4 cores.'
    );
    const gone = node(0, { ranks: [{ rank: 0, series: { cpu: [1, null] } }] });
    expect(labelOf(chart(resources({ nodes: [gone] }), 'cpu'), 60, [], trans)).toContain('rank 0 –');
  });

  it('have rates in units of 1000', () => {
    expect([0, 1500, 999.6e3, 1.2e9].map(formatRate)).toEqual(['0 B/s', '1.5 kB/s', '1 MB/s', '1.2 GB/s']);
  });
});

suite('the choice of what is shown', () => {
  it('is by rank and of five minutes at first, and keeps what a change does not name', () => {
    const view = new ResourceView();
    let changes = 0;
    view.changed.connect(() => (changes += 1));
    expect(view.values).toEqual({ by: 'rank', seconds: 300 });
    view.change({ by: 'node' });
    view.change({ seconds: 60 });
    expect(view.values).toEqual({ by: 'node', seconds: 60 });
    expect(changes).toBe(2);
  });

  it('ignores what is no choice', () => {
    const view = new ResourceView();
    view.change({ by: 'device', seconds: 7 } as unknown as { by: By });
    expect(view.values).toEqual({ by: 'rank', seconds: 300 });
  });
});
