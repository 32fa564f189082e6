import { describe, expect, it } from 'vitest';

import { IRemedy, IRunJson } from '../src/generated/server';
import { labelOf, stepOf } from '../src/remedy';
import { doneCount, failedFirst, partsOf, piecesOf, RankChoice, Segment } from '../src/run/model';
import {
  DifferingLines,
  htmlOf,
  ISource,
  isStderr,
  keyOf as keyWithin,
  lineCount,
  linesByRank,
  opens,
  ranksIn,
  segmentsFor
} from '../src/run/segments';

const keyOf = (segment: Segment, choice: RankChoice, source: ISource): string => keyWithin(segment, choice, source, 8);

const RUN: IRunJson = {
  version: 1,
  run: 7,
  cluster: 'c1',
  state: 'running',
  seconds: 3,
  ranks: [
    { ranks: '3', state: 'error', seconds: 1.5 },
    { ranks: '0,4', state: 'running' },
    { ranks: '2', state: 'interrupted', seconds: 2 },
    { ranks: '1', state: 'value', seconds: 1 }
  ]
};

describe('a remedy', () => {
  it.each([
    [{ action: 'interrupt' }, '%dist interrupt', { interrupt: '' }],
    [{ action: 'interrupt', ranks: '0-3' }, '%dist interrupt -r 0-3', { interrupt: '0-3' }],
    [{ action: 'interrupt', run: 7 }, '%dist interrupt --run 7', { interrupt: '', run: 7 }],
    [{ action: 'interrupt; import os' }, '%dist interrupt; import os', { cell: '%dist interrupt; import os\n' }],
    [{ action: 'restart', ranks: '2' }, '%dist restart -r 2', { cell: '%dist restart -r 2\n' }],
    [{ action: 'push', name: 'lr', ranks: '1' }, '%dist push lr -r 1', { cell: '%dist push lr -r 1\n' }],
    [{ action: 'push', name: 'lr\n!rm' }, '%dist push lr !rm', { cell: '%dist push lr !rm\n' }],
    [{ action: 'run_cell', ranks: '3' }, '%%dist -r 3', { cell: '%%dist -r 3\n' }]
  ])('%j is worded, and done at once only if it is an interrupt', (remedy, label, step) => {
    const sent = { ...remedy, effect: '' } as IRemedy; // an output may come from elsewhere
    expect(labelOf(sent)).toBe(label);
    expect(stepOf(sent)).toEqual(step);
  });
});

describe('a cell that is suggested', () => {
  const remedy: IRemedy = { action: 'run_cell', ranks: '2', effect: '' };

  it('is run beside a run that is active, and else inserted', () => {
    expect(stepOf(remedy, true)).toEqual({ beside: '2' });
    expect(stepOf(remedy, false)).toEqual({ cell: '%%dist -r 2\n' });
  });
});

describe('ranks that are to continue', () => {
  const remedy: IRemedy = { action: 'continue', ranks: '0-1', effect: '' };

  it('go on at once while a run waits for them: a cell would wait for that run', () => {
    expect(stepOf(remedy, true)).toEqual({ resume: '0-1' });
    expect(stepOf(remedy, false)).toEqual({ cell: '%dist continue -r 0-1\n' });
  });
});

describe('the ranks of a run', () => {
  it('are sorted', () => expect(partsOf(RUN).map(part => part.rank)).toEqual([0, 1, 2, 3, 4]));

  it('come failed first, then interrupted', () => {
    expect(failedFirst(partsOf(RUN)).map(part => part.rank)).toEqual([3, 2, 0, 1, 4]);
  });

  it('are done unless they wait or run', () => expect(doneCount(RUN)).toBe(3));
});

describe('the pieces of the HTML', () => {
  const html = 'x<!--jdist--><b>one</b><!--jdist--></div><!--jdist-->two<!--jdist--> <!-- open';
  const pieces = ['<b>one</b>', 'two'];

  it('are those that are marked', () => {
    expect(piecesOf(html)).toEqual(pieces);
    expect(piecesOf([html.slice(0, 7), html.slice(7)])).toEqual(pieces); // as notebooks are saved
    expect(piecesOf(undefined)).toEqual([]);
  });

  it('are found by their numbers', () => {
    const find = (piece?: number): string => htmlOf({ pieces, trusted: false }, piece);
    expect([find(0), find(1), find(2), find()]).toEqual([...pieces, '', '']);
    expect(typeof find('constructor' as unknown as number)).toBe('string'); // an output may come from elsewhere
  });
});

describe('the segments', () => {
  const text: Segment = { kind: 'text', ranks: '0-1', text: 'a\nb' };
  const alike: Segment = {
    kind: 'text',
    ranks: '0-2',
    text: 'loss 1 | 2\nend',
    stderr: true,
    texts: [
      { ranks: '0', text: 'loss 1\nend' },
      { ranks: '1-2', text: 'loss 2\nend' }
    ]
  };
  const gap: Segment = { kind: 'gap', text: '… 5 lines' };
  const shown: Segment = { kind: 'shown', ranks: '0', piece: 0 };
  const source = { pieces: ['<b>1</b>', '<b>2</b>'], trusted: false };

  it('of all ranks are all', () => expect(segmentsFor(text, 'all')).toEqual([text]));

  it('of one rank are those that it has', () => {
    expect(segmentsFor(text, 1)).toEqual([text]);
    expect(segmentsFor(text, 2)).toEqual([]);
    expect(segmentsFor(shown, 1)).toEqual([]);
    expect(segmentsFor(gap, 5)).toEqual([gap]);
  });

  it('of one rank have its own numbers', () => {
    expect(segmentsFor(alike, 2)).toEqual([{ kind: 'text', ranks: '1-2', text: 'loss 2\nend', stderr: true }]);
    expect(segmentsFor(alike, 3)).toEqual([]);
  });

  it('say whose they are, and how long', () => {
    expect([text, alike, gap, shown].map(ranksIn)).toEqual(['0-1', '0-2', '', '0']);
    expect([text, alike, gap, shown].map(lineCount)).toEqual([2, 2, 1, 1]);
    expect([text, alike, gap, shown].map(isStderr)).toEqual([false, true, false, false]);
  });

  it('of bars of many ranks are one that is changed in its place', () => {
    const texts = Array.from({ length: 9 }, (_, i) => ({ ranks: `${i}`, text: `${i} %\nb ${i}` }));
    const bars: DifferingLines = { kind: 'text', ranks: '0-8', text: '0-8 %\nb', texts };
    expect([opens(bars, 8), opens(alike, 8), opens(text, 8)]).toEqual([true, false, false]);
    expect([opens(bars, 9), opens(alike, 1)]).toEqual([false, true]);
    expect(keyWithin(bars, 'all', source, 9)).not.toBe(keyOf(bars, 'all', source)); // drawn again
    expect(linesByRank({ ...bars, texts: texts.slice(7) })).toBe('[7] 7 %\n[7] b 7\n[8] 8 %\n[8] b 8');
    expect(keyOf({ ...bars, text: '9 %' }, 'all', source)).toBe(keyOf(bars, 'all', source));
    expect(keyOf({ ...alike, text: '9 %' }, 'all', source)).not.toBe(keyOf(alike, 'all', source));
  });

  it('are the same only as long as they look the same', () => {
    const key = keyOf(shown, 'all', source);
    expect(keyOf({ ...shown, piece: 1 }, 'all', { ...source, pieces: ['', '<b>1</b>'] })).toBe(key);
    expect(keyOf({ ...shown, piece: 1 }, 'all', source)).not.toBe(key);
    expect(keyOf(shown, 'all', { ...source, trusted: true })).not.toBe(key);
    expect(keyOf(shown, 0, source)).not.toBe(key);
    expect(keyOf({ ...text, text: 'a' }, 'all', source)).not.toBe(keyOf(text, 'all', source));
  });
});
