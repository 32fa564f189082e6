import { describe, expect, it } from 'vitest';

import { IRank } from '../src/api';
import { parseFilter } from '../src/panel/ranks/filter';
import { columns, fittingColumns, ranksOfRows, tableRows } from '../src/panel/ranks/rows';
import { gpuDetails, tooltip } from '../src/panel/ranks/tooltip';
import { DEFAULT_VIEW, ITableView } from '../src/panel/selection';
import { rowRange } from '../src/panel/ranks/visiblerows';
import { cluster, doing, rank, trans } from './samples';

const RANKS = [
  rank(0, { state: 'running', run: 7, doing: doing({ seconds: 4 }), rss: 3 * 2 ** 30 }),
  rank(1, { state: 'running', run: 7, doing: doing({ kind: 'python', line: 2, source: 'step(batch)', seconds: 9 }) }),
  rank(2, { last_line: 'loss 0.5' }),
  rank(10, { node: 1, hostname: 'host-1', state: 'gone', death: 'killed', rss: 2 ** 30 })
];

function shown(view: Partial<ITableView>, ranks: IRank[] = RANKS): string[] {
  const all = { ...DEFAULT_VIEW, ...view };
  const found = cluster({ ranks });
  const filter = parseFilter(all.filter, found, trans);
  return tableRows(found, all, filter, columns(ranks, all.isByNode, trans), 0).map(row => row.key);
}

function keys(ranks: IRank[], isByNode = false): string[] {
  return columns(ranks, isByNode, trans).map(each => each.key);
}

const NONE = { ranks: null, words: [], problem: '' };

describe('the columns', () => {
  it('are those that have something to show', () => {
    expect(keys([rank(0)])).toEqual(['rank', 'node', 'state', 'doing']);
    expect(keys([rank(0), rank(1, { device: 'cpu' })])).toContain('device');
    expect(keys([rank(0, { doing: doing({ cpu: 0 }) })])).toContain('cpu');
    expect(keys([rank(0, { gpu_own: 1, gpu_busy: 0 })])).toEqual([
      'rank',
      'node',
      'state',
      'doing',
      'gpumemory',
      'gpu'
    ]);
  });

  it('do not repeat the node of a heading', () => expect(keys([rank(0)], true)).not.toContain('node'));

  it.each([
    [245, ['rank', 'state']],
    [320, ['rank', 'node', 'state']],
    [620, ['rank', 'node', 'state', 'doing', 'cpu', 'memory']]
  ])('give way to rank and state in %d pixels', (width, expected) => {
    const ranks = [rank(0, { rss: 1, doing: doing({ cpu: 1 }) })];
    expect(fittingColumns(columns(ranks, false, trans), width, trans).map(each => each.key)).toEqual(expected);
  });

  it('have the state in words, the activity behind it and all else in a tooltip where the table is narrow', () => {
    const all = columns(RANKS, false, trans);
    const state = fittingColumns(all, 245, trans).find(each => each.key === 'state')!;
    expect(state.text(RANKS[2], 0)).toBe('idle');
    const text = state.text(RANKS[0], 0);
    expect(text).toBe('running · all_reduce #3, 4 s · run 7');
    expect(tooltip('state', RANKS[0], text, 0, trans, all)).toBe(`${text}\nNode: 0\nMemory: 3.0 GiB`);
    expect(tooltip('state', RANKS[0], 'running', 0, trans, [])).toBe('running');
  });

  it('show sizes and shares', () => {
    const row = rank(0, {
      rss: 2 ** 21,
      gpu_own: 2 ** 30,
      gpu_total: 80 * 2 ** 30,
      gpu_busy: 0.5,
      doing: doing({ cpu: 1 })
    });
    const texts = Object.fromEntries(columns([row], false, trans).map(each => [each.key, each.text(row, 0)]));
    expect(texts).toMatchObject({ memory: '2 MiB', gpumemory: '1.0 / 80 GiB', gpu: '50 %', cpu: '100 %' });
  });

  it('show the memory of all processes where the own is not known', () => {
    const row = rank(0, { gpu_own: null, gpu_used: 3 * 2 ** 30, gpu_total: 8 * 2 ** 30, gpu_name: 'GPU 0' });
    const column = columns([row], false, trans).find(each => each.key === 'gpumemory');
    expect(column?.text(row, 0)).toBe('3.0 / 8 GiB');
    expect(gpuDetails(row, trans)).toBe('GPU 0\nAll processes use 3.0 GiB of 8.0 GiB');
  });
});

describe('the rows', () => {
  it('are sorted by rank as numbers', () => expect(shown({})).toEqual(['r0', 'r1', 'r2', 'r10']));

  it('are sorted by a column, and by rank where that is equal', () => {
    expect(shown({ sort: 'state' })).toEqual(['r10', 'r2', 'r0', 'r1']);
    expect(shown({ sort: 'memory' })).toEqual(['r1', 'r2', 'r10', 'r0']);
    expect(shown({ sort: 'memory', isDescending: true })).toEqual(['r0', 'r10', 'r1', 'r2']);
  });

  it('are sorted by the time of what they do, the longest first', () => {
    expect(shown({ sort: 'doing' })).toEqual(['r1', 'r0', 'r2', 'r10']);
  });

  it('are sorted by rank if the column has gone', () => expect(shown({ sort: 'gpu' })).toEqual(shown({})));

  it.each([
    ['', ['r0', 'r1', 'r2', 'r10']],
    ['0-1', ['r0', 'r1']],
    ['1', ['r1']],
    ['2-', ['r2', 'r10']],
    ['0,10', ['r0', 'r10']],
    ['!2', ['r0', 'r1', 'r10']],
    ['! 2, !10', ['r0', 'r1']],
    ['node=1', ['r2', 'r10']],
    ['-1', ['r10']],
    ['all', ['r0', 'r1', 'r2', 'r10']],
    ['running !0', ['r1']],
    ['running', ['r0', 'r1']],
    ['RUNNING 1-3', ['r1']],
    ['host-1', ['r2', 'r10']],
    ['batch', ['r1']],
    ['loss', ['r2']],
    ['killed', ['r10']],
    ['nothing', []]
  ])('match the filter %j', (filter, expected) => expect(shown({ filter })).toEqual(expected));

  it('are grouped by node, below headings', () => {
    const all = [rank(2), rank(0), rank(3), rank(1)];
    expect(shown({ isByNode: true, isDescending: true }, all)).toEqual(['n0', 'r1', 'r0', 'n1', 'r3', 'r2']);
    expect(shown({ isByNode: true, filter: '3' }, all)).toEqual(['n1', 'r3']);
    const [heading] = tableRows(
      cluster({ ranks: all }),
      { ...DEFAULT_VIEW, isByNode: true },
      NONE,
      columns(all, true, trans),
      0
    );
    expect(heading).toEqual({ key: 'n0', node: 0, hostname: 'host-0', count: 2 });
  });

  it('know their ranks, which headings have not', () => {
    const view = { ...DEFAULT_VIEW, isByNode: true };
    expect(ranksOfRows(tableRows(cluster({ ranks: RANKS }), view, NONE, columns(RANKS, true, trans), 0))).toEqual([
      0, 1, 2, 10
    ]);
  });

  it('leave the order of the cluster as it is', () => {
    const ranks = [rank(1), rank(0)];
    shown({}, ranks);
    expect(ranks.map(each => each.rank)).toEqual([1, 0]);
  });
});

describe('the rows that are drawn', () => {
  it.each([
    ['all of a short list', 5, 0, 20, [0, 5]],
    ['none of an empty list', 0, 0, 20, [0, 0]],
    ['the top', 600, 0, 20, [0, 36]],
    ['the middle, with some above and below', 600, 100, 20, [92, 128]],
    ['the end', 600, 580, 20, [572, 600]],
    ['the end, if the list has become shorter', 30, 580, 20, [2, 30]]
  ])('%s', (_, count, top, size, expected) => {
    const [first, end] = rowRange(count, top, size);
    expect([first, end]).toEqual(expected);
  });
});
