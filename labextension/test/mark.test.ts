import { describe, expect, it } from 'vitest';

import { markOf } from '../src/cells/mark';
import { IRunJson } from '../src/generated/server';
import { trans } from './samples';

function run(state: IRunJson['state'], ranks: Record<string, string>, changes: Partial<IRunJson> = {}): IRunJson {
  const parts = Object.entries(ranks).map(([ranks, state]) => ({ ranks, state })) as IRunJson['ranks'];
  return { version: 1, run: 7, cluster: 'c1', state, seconds: 3, ranks: parts, ...changes };
}

describe('the mark of a run', () => {
  const certain = { verdict: { headline: 'run 7 cannot finish', is_certain: true } };
  const place = { ranks: '1', reason: 'breakpoint', function: 'f', line: 1 };

  it.each([
    [run('done', { '0-3': 'value' }), '4/4', '✓', '4 of 4 ranks done'],
    [run('done', { '0-3': 'interrupted' }), 'interrupted', '■', '4 of 4 ranks interrupted'],
    [
      run('done', { '0': 'value', '1-3': 'interrupted' }),
      '3 of 4 interrupted',
      '■',
      '1 of 4 ranks done, 3 of 4 ranks interrupted'
    ],
    [run('done', { '0-2': 'value', '3': 'error' }), '1 of 4 failed', '✗', '3 of 4 ranks done, 1 of 4 ranks failed'],
    [
      run('done', { '0-2': 'interrupted', '3': 'error' }),
      '1 of 4 failed',
      '✗',
      '1 of 4 ranks failed, 3 of 4 ranks interrupted'
    ],
    [run('done', { '0-3': 'error' }), 'failed', '✗', '4 of 4 ranks failed'],
    [run('done', { '0-2': 'timeout' }), 'timed out', '⧖', '3 of 3 ranks timed out'],
    [run('done', { '0-2': 'error', '3': 'lost' }), 'failed', '✗', '3 of 4 ranks failed, 1 of 4 ranks lost'],
    [run('done', { '0': 'lost', '1': 'value' }), '1 of 2 lost', '†', '1 of 2 ranks done, 1 of 2 ranks lost'],
    [run('running', { '0': 'value', '1': 'running' }), '1/2 done', '', '1 of 2 ranks done, 1 of 2 ranks running'],
    [run('running', { '0-1': 'running' }, { paused: [place] }), '1 of 2 paused', '⏸', '1 of 2 ranks paused, 1 of 2'],
    [run('running', { '0-1': 'running' }, certain), 'cannot finish', '●', '2 of 2 ranks running, cannot finish'],
    [run('waiting', { '0-1': 'waiting' }), 'waiting', '○', '2 of 2 ranks waiting']
  ])('%#: says %s', (bundle, text, sign, label) => {
    const mark = markOf(bundle, trans);
    expect([mark.text, mark.sign]).toEqual([text, sign]);
    expect(mark.label).toContain(label);
  });
});
