import { describe, expect, it } from 'vitest';

import { IBranch } from '../src/generated/server';
import { canContinue, canPause, isPaused, linesByRun, linesOf, pausedState, rowsOf } from '../src/paused';
import { activity, clusterState } from '../src/states';
import { cluster, doing, pause, rank, trans } from './samples';

const FILE = '/home/u/train.py';

const found = cluster({
  ranks: [
    rank(0, { state: 'paused', run: 7, paused: pause() }),
    rank(1, { state: 'running', run: 7, is_pausing: true, doing: doing() }),
    rank(2, { state: 'paused', run: 7, paused: pause() }),
    rank(3, {
      state: 'paused',
      run: 9,
      paused: pause({ file: FILE, of_run: 0, line: 31, text: 'main, train.py line 31' })
    })
  ],
  runs: [{ number: 7, state: 'paused', ranks: '0-3', count: 4, done: 0, seconds: 2 }]
});

describe('the lines at which ranks are paused', () => {
  it('are not those of an earlier cluster of the same name', () => {
    const [now, before] = ['b2', 'a1'].map(id => cluster({ cluster: id, ranks: [rank(0, { paused: pause() })] }));
    const [key] = linesByRun([now]).keys();
    expect(linesByRun([before]).has(key)).toBe(false);
  });

  it('belong to the run whose cell has the code', () => {
    const lines = linesByRun([found, cluster({ name: 'c2', ranks: [rank(0, { paused: pause({ line: 2 }) })] })]);
    expect([...lines]).toEqual([
      ['3 c1', new Map([[8, [0, 2]]])],
      ['3 c2', new Map([[2, [0]]])]
    ]);
  });

  it('of a file are those of its ranks', () => {
    expect([...linesOf(found, FILE)]).toEqual([[31, [3]]]);
    expect(linesOf(found, '/home/u/other.py').size).toBe(0);
    expect(linesOf(undefined, FILE).size).toBe(0);
  });
});

describe('the texts of a paused cluster', () => {
  it('say where a rank is', () => {
    const [first, pausing, , other] = found.ranks ?? [];
    expect(activity(first, 0, trans)).toBe('train_step, line 8: loss.backward()');
    expect(activity(pausing, 0, trans)).toBe('all_reduce #3, 5 s · run 7');
    expect(activity(other, 0, trans), 'a cell runs in its frame').toBe('main, train.py line 31 · a cell of run 9');
  });

  it('say so of the cluster, unless a run cannot finish', () => {
    expect(clusterState(found, trans)).toEqual({ sign: '⏸', label: 'run 7 is paused', tone: 'warn' });
    const about = { details: [], responsible: [], waiting: [], remedies: [] };
    const verdict = { run: 7, kind: 'missing' as const, headline: '', ...about };
    const waiting = cluster({ ...found, verdicts: [{ ...verdict, is_certain: false }] });
    expect(clusterState(waiting, trans).label).toBe('run 7 is paused');
    const doomed = cluster({ ...found, verdicts: [{ ...verdict, is_certain: true }] });
    expect(clusterState(doomed, trans).label).toBe('cannot finish');
  });
});

describe('the tree of stacks', () => {
  const branch = (name: string, ranks: number[], children: IBranch[] = [], chosen: number[] = []): IBranch => ({
    frame: { function: name, file: '', line: 1 },
    ranks,
    chosen,
    children
  });

  it('is indented where ranks part', () => {
    const tree = [branch('<cell>', [0, 1, 2], [branch('main', [0, 1, 2], [branch('a', [0]), branch('b', [1, 2])])])];
    const rows = rowsOf(tree).map(row => [row.branch.frame.function, row.depth, row.index, row.isNamed]);
    expect(rows).toEqual([
      ['<cell>', 0, 0, true],
      ['main', 0, 1, false],
      ['a', 1, 2, true],
      ['b', 1, 2, true]
    ]);
  });

  it('has an end', () => {
    const wide = Array.from({ length: 1000 }, (_, i) => branch(`f${i}`, [i]));
    expect(rowsOf(wide)).toHaveLength(400);
  });
});

describe('what can be done with a rank', () => {
  it('depends on whether it is paused', () => {
    const [paused, pausing] = found.ranks ?? [];
    expect([canPause(paused), canContinue(paused)]).toEqual([false, true]);
    expect([canPause(pausing), canContinue(pausing)]).toEqual([false, true]);
    expect([canPause(rank(0, { run: 7 })), canContinue(rank(0, { run: 7 }))]).toEqual([true, false]);
    expect(canPause(rank(0)), 'it runs nothing').toBe(false);
  });

  it('is told anew when a rank has moved', () => {
    const elsewhere = cluster({ ...found, ranks: [rank(0, { paused: pause({ text: 'line 9' }) })] });
    expect([isPaused(found), isPaused(cluster()), isPaused(undefined)]).toEqual([true, false, false]);
    expect(pausedState(found)).not.toBe(pausedState(elsewhere));
    expect(pausedState(cluster())).toBe('');
  });
});
