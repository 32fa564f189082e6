import { describe, expect, it } from 'vitest';

import { describeUnknown, meantRun } from '../src/meantrun';
import { isOfRun } from '../src/run/model';
import { IRunJson, IVerdictRow } from '../src/generated/server';
import { notebookFolder } from '../src/shell/notebookfolder';
import { verdictText } from '../src/verdicttext';
import { cluster, doing, rank, trans } from './samples';

const verdict: IVerdictRow = {
  run: 7,
  kind: 'missing',
  is_certain: true,
  headline: 'run 7 cannot finish: rank 3 has not entered barrier #2',
  details: ['ranks 0-2 wait in it at cell line 2 (0.6 s)', 'rank 3 finished the cell 0.6 s ago'],
  responsible: [3],
  waiting: [0, 1, 2],
  remedies: [
    { action: 'interrupt', effect: 'stop the run everywhere', run: 7 },
    { action: 'run_cell', effect: 'let rank 3 join', ranks: '3' }
  ]
};
const run = { number: 6, state: 'running', ranks: '0-1', count: 2, done: 1, seconds: 3 };

describe('verdictText', () => {
  it('is what a notebook has in text/plain', () => {
    expect(verdictText(verdict)).toBe(
      [
        '● run 7 cannot finish: rank 3 has not entered barrier #2',
        '  ranks 0-2 wait in it at cell line 2 (0.6 s)',
        '  rank 3 finished the cell 0.6 s ago',
        '  → %dist interrupt --run 7  stop the run everywhere',
        '  → %%dist -r 3              let rank 3 join'
      ].join('\n')
    );
    expect(verdictText({ ...verdict, details: [], remedies: [] })).toBe(`● ${verdict.headline}`);
  });
});

describe('meantRun', () => {
  const known = cluster({
    cluster: 'id1',
    verdicts: [verdict],
    runs: [run],
    ranks: [rank(0, { run: 6 }), rank(1, { run: 9 }), rank(2)]
  });
  const id = (number: number): object => ({ run: number, cluster: 'c1', cluster_id: 'id1' });

  it('is the one that is named, else that of the ranks, of the verdict, or the first', () => {
    expect(meantRun(5, [1], known)).toEqual(id(5));
    expect(meantRun(undefined, [2, 1], known)).toEqual(id(9));
    expect(meantRun(undefined, [], known)).toEqual(id(7));
    expect(meantRun(undefined, [], { ...known, verdicts: [] })).toEqual(id(6));
  });

  it('is none where none runs', () => {
    expect(meantRun(undefined, [2], known)).toBeUndefined();
    expect(meantRun(undefined, [], cluster())).toBeUndefined();
    expect(meantRun(7, [], undefined)).toBeUndefined();
  });
});

describe('isOfRun', () => {
  const output = { run: 7, cluster: 'c1', cluster_id: 'id1' } as IRunJson;

  it('compares the cluster by its id where both have one', () => {
    expect(isOfRun(output, { run: 7, cluster: 'c1', cluster_id: 'id1' })).toBe(true);
    expect(isOfRun(output, { run: 7, cluster: 'c1', cluster_id: 'of an earlier one' })).toBe(false);
    expect(isOfRun({ ...output, cluster_id: undefined }, { run: 7, cluster: 'c1', cluster_id: 'id1' })).toBe(true);
    expect(isOfRun(output, { run: 8, cluster: 'c1', cluster_id: 'id1' })).toBe(false);
    expect(isOfRun(undefined, { run: 7, cluster: 'c1' })).toBe(false);
  });
});

describe('describeUnknown', () => {
  const id = { run: 6, cluster: 'c1' };

  it('says where the run is and how far', () => {
    const busy = rank(0, { run: 6, doing: doing({ number: 2, op: 'barrier', seconds: 3 }) });
    const text = describeUnknown(id, cluster({ runs: [run], ranks: [busy] }), trans);
    expect(text).toContain('Run 6 of c1 belongs to no notebook that is open in this page.');
    expect(text).toContain('It began on ranks 0-1 3 s ago; 1 of 2 are done. Rank 0: barrier #2, 3 s.');
    expect(text).toContain('Open the notebook that began it.');
  });

  it('says what is known of a run that waits, or is over', () => {
    const queued = describeUnknown(id, cluster({ runs: [{ ...run, state: 'queued' }] }), trans);
    expect(queued).toContain('It waits for ranks 0-1, for 3 s so far.');
    expect(describeUnknown(id, undefined, trans)).not.toContain('ranks');
  });
});

describe('notebookFolder', () => {
  it('is below the folder that the file browser shows first', () => {
    expect(notebookFolder('project/train/a.ipynb', '~/work')).toBe('~/work/project/train');
    expect(notebookFolder('a.ipynb', '/srv')).toBe('/srv');
    expect(notebookFolder('RTC:project/a.ipynb', '/srv')).toBe('/srv/project');
    expect(notebookFolder('a.ipynb', '')).toBe('.');
    expect(notebookFolder(undefined, '/srv')).toBe('');
  });
});
