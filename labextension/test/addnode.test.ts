import { describe, expect, it } from 'vitest';

import { addProblems, addRequest, IAddForm, launchersOf } from '../src/addnode/request';
import { IAddingOptions, ILaunchOptions, ILauncherForm } from '../src/generated/server';
import { addingText } from '../src/states';
import { cluster, trans } from './samples';

function fields(changes: Partial<ILauncherForm> = {}): ILauncherForm {
  return { hosts: '', nodes: '1', options: [], arguments: '', problem: '', cannot_add: '', ...changes };
}

const partition = { flag: '--partition', label: 'Partition', example: 'gpu', note: '', pattern: '' };
const forms = {
  local: fields(),
  ssh: fields({ hosts: 'required' }),
  mpi: fields({ hosts: 'optional' }),
  slurm: fields({ options: [partition], arguments: 'other options of sbatch' }),
  kubernetes: fields({ cannot_add: 'it cannot' })
};
const launch: ILaunchOptions = {
  launchers: ['local', 'ssh', 'mpi', 'slurm', 'kubernetes'],
  forms,
  max_ranks: 0,
  ranks_here: 0,
  defaults: {}
};

function adding(launcher: string, backend = 'gloo'): IAddingOptions {
  return { launcher, nproc: 2, backend };
}

function form(changes: Partial<IAddForm> = {}): IAddForm {
  return { launcher: 'local', count: '', hosts: '', nproc: '', launcher_args: '', options: {}, ...changes };
}

const nothing = { launcher: null, count: null, hosts: null, nproc: null, launcher_args: null };

describe('addRequest', () => {
  it('leaves open what is not filled in', () => {
    expect(addRequest(form(), launch, adding('local'))).toEqual(nothing);
  });

  it('names hosts where the launcher takes them, and else how many nodes', () => {
    const typed = { count: '3', hosts: ' c:2,d ', nproc: '4' };
    expect(addRequest(form({ ...typed, launcher: 'ssh' }), launch, adding('ssh'))).toEqual({
      ...nothing,
      hosts: 'c:2,d',
      nproc: 4
    });
    expect(addRequest(form(typed), launch, adding('local'))).toEqual({ ...nothing, count: 3, nproc: 4 });
  });

  it('has the options of another launcher than that of the cluster, and none of its own', () => {
    const typed = form({ launcher: 'slurm', options: { 'slurm --partition': 'gpu' }, launcher_args: '--exclusive' });
    expect(addRequest(typed, launch, adding('slurm'))).toEqual(nothing);
    expect(addRequest(typed, launch, adding('local'))).toEqual({
      ...nothing,
      launcher: 'slurm',
      launcher_args: ['--partition', 'gpu', '--exclusive']
    });
  });
});

describe('addProblems', () => {
  const none = { launcher: '', count: '', hosts: '', nproc: '' };

  it('accepts an empty form of a launcher that can add nodes', () => {
    expect(addProblems(form(), launch, adding('local'), trans)).toEqual(none);
    expect(addProblems(form({ launcher: 'mpi', count: 'x' }), launch, adding('mpi'), trans)).toEqual(none);
  });

  it.each([
    [form({ count: '0' }), adding('local'), 'count', 'A whole number'],
    [form({ nproc: 'two' }), adding('local'), 'nproc', 'not “two”'],
    [form({ launcher: 'ssh' }), adding('ssh'), 'hosts', 'Name the host'],
    [form({ launcher: 'kubernetes' }), adding('kubernetes'), 'launcher', 'cannot add nodes to a running cluster'],
    [form({ launcher: 'ray' }), adding('ray'), 'launcher', 'does not allow the launcher ray'],
    [form(), adding('local', 'mpi'), 'launcher', 'mpirun has fixed the number of ranks']
  ])('says what is wrong: %#', (typed, options, field, text) => {
    const found = addProblems(typed, launch, options, trans);
    expect(found[field as keyof typeof found]).toContain(text);
    expect(Object.values(found).filter(Boolean)).toHaveLength(1);
  });

  it('offers the launcher of the cluster first, even where it is not allowed', () => {
    expect(launchersOf(launch, adding('mpi'))).toEqual(['mpi', 'local', 'ssh', 'slurm', 'kubernetes']);
    expect(launchersOf(launch, adding('ray'))[0]).toBe('ray');
  });
});

describe('addingText', () => {
  const row = { number: 1, state: 'adding' as const, text: '', done: 0, count: 1 };

  it('says how far it is', () => {
    expect(addingText(cluster(), trans)).toBe('');
    expect(addingText(cluster({ adding: row }), trans)).toBe('Adding a node…');
    const second = { ...row, count: 3, done: 1, text: 'ssh: c connecting' };
    expect(addingText(cluster({ adding: second }), trans)).toBe('Adding node 2 of 3: ssh: c connecting');
  });

  it('says why none could be added, and nothing once they have been', () => {
    const failed = { ...row, state: 'failed' as const, text: 'run 1 is running' };
    expect(addingText(cluster({ adding: failed }), trans)).toBe('No node could be added: run 1 is running');
    expect(addingText(cluster({ adding: { ...row, state: 'added' } }), trans)).toBe('');
  });
});
