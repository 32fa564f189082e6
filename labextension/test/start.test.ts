import { describe, expect, it } from 'vitest';

import { ILaunchOptions, ILauncherForm } from '../src/generated/server';
import {
  EMPTY_FORM,
  hostChoices,
  IStartForm,
  loginOptions,
  optionKey,
  problemOfOption,
  problemsOf,
  splitWords,
  startRequest,
  withRecent
} from '../src/start/request';
import { trans } from './samples';

function fields(changes: Partial<ILauncherForm> = {}): ILauncherForm {
  return { hosts: '', nodes: '1', options: [], arguments: '', problem: '', cannot_add: '', ...changes };
}

const partition = { flag: '--partition', label: 'Partition', example: 'gpu', note: '', pattern: '' };

function launch(changes: Partial<ILaunchOptions> = {}): ILaunchOptions {
  const forms = {
    local: fields(),
    ssh: fields({ hosts: 'required' }),
    slurm: fields({ nodes: 'all of the job', options: [partition], arguments: 'other options of sbatch' })
  };
  return { launchers: Object.keys(forms), forms, max_ranks: 0, ranks_here: 0, defaults: {}, hosts: [], ...changes };
}

function form(changes: Partial<IStartForm> = {}): IStartForm {
  return { ...EMPTY_FORM, launcher: 'local', ...changes };
}

describe('problemsOf', () => {
  const none = { at: '', python: '', hosts: '', nnodes: '', nproc_per_node: '', name: '', launcher_args: '' };

  it('accepts what a start accepts', () => {
    expect(problemsOf(form(), launch(), trans)).toEqual(none);
    expect(problemsOf(form({ nnodes: ' 2 ', nproc_per_node: '4, 2', name: 'a-b_1' }), launch(), trans)).toEqual(none);
    expect(problemsOf(form({ launcher: 'ssh', hosts: 'a,b', nnodes: 'abc' }), launch(), trans)).toEqual(none);
  });

  it.each([
    [{ at: 'login:c1' }, 'at', 'not “login:c1”'],
    [{ at: '-oProxyCommand=x' }, 'at', 'as in ssh HOST'],
    [{ nnodes: 'abc' }, 'nnodes', 'not “abc”'],
    [{ nnodes: '0' }, 'nnodes', 'whole number'],
    [{ nnodes: '1.5' }, 'nnodes', 'whole number'],
    [{ nproc_per_node: 'two' }, 'nproc_per_node', 'not “two”'],
    [{ nproc_per_node: '4,' }, 'nproc_per_node', 'one for each node'],
    [{ nproc_per_node: '4,2', nnodes: '3' }, 'nproc_per_node', 'of 2 nodes, but there are 3'],
    [{ name: 'a b' }, 'name', 'Use letters'],
    [{ launcher: 'ssh' }, 'hosts', 'Name the hosts'],
    [{ launcher: 'ssh', hosts: 'a:2, b:x' }, 'hosts', 'not “b:x”'],
    [{ launcher: 'ssh', hosts: 'a b' }, 'hosts', 'not “a b”'],
    [{ launcher: 'ssh', hosts: 'a:0' }, 'hosts', 'not “a:0”'],
    [{ launcher: 'slurm', launcher_args: '--comment "a b' }, 'launcher_args', 'not closed'],
    [{ launcher: 'slurm', launcher_args: "--comment it's" }, 'launcher_args', 'not closed']
  ] as const)('refuses %o', (changes, key, words) => {
    expect(problemsOf(form(changes), launch(), trans)[key]).toContain(words);
  });

  it('accepts hosts as the launchers do, and quotes that are closed', () => {
    const hosts = 'a:2,user@b:2,[fe80::1]:4,10.0.0.1';
    expect(problemsOf(form({ launcher: 'ssh', hosts }), launch(), trans)).toEqual(none);
    const typed = { launcher: 'slurm', launcher_args: `--comment "it's" --x 'a "b'` };
    expect(problemsOf(form(typed), launch(), trans)).toEqual(none);
    expect(problemsOf(form({ launcher_args: '"' }), launch(), trans)).toEqual(none); // local has no such field
  });

  it('refuses more ranks than the server allows', () => {
    const limited = launch({ max_ranks: 8, ranks_here: 3 });
    const said = (typed: Partial<IStartForm>): string => problemsOf(form(typed), limited, trans).nproc_per_node;
    expect(said({ nproc_per_node: '5' })).toBe('');
    expect(said({ nproc_per_node: '6' })).toContain('8 ranks in all, and there would be 9');
    expect(said({ nnodes: '2', nproc_per_node: '3' })).toContain('there would be 9');
    expect(said({ nproc_per_node: '3,3' })).toContain('there would be 9');
  });

  it('asks for the numbers that the limit of a server needs', () => {
    const limited = launch({ max_ranks: 8 });
    expect(problemsOf(form(), limited, trans).nproc_per_node).toContain('limits');
    expect(problemsOf(form({ nproc_per_node: '2' }), limited, trans)).toEqual(none);
    expect(problemsOf(form({ launcher: 'slurm', nproc_per_node: '2' }), limited, trans).nnodes).toContain('limits');
    const defaults = { nnodes: 2, nproc_per_node: 2 };
    expect(problemsOf(form({ launcher: 'slurm' }), { ...limited, defaults }, trans)).toEqual(none);
  });
});

describe('problemOfOption', () => {
  const time = {
    flag: '--time',
    label: 'Time limit',
    example: '2:00:00',
    note: '',
    pattern: '\\d+(:\\d{2})*|UNLIMITED'
  };

  it('compares the whole value with the pattern', () => {
    expect(problemOfOption(time, ' 2:00:00 ', trans)).toBe('');
    expect(problemOfOption(time, '', trans)).toBe('');
    expect(problemOfOption(time, 'abc', trans)).toContain('Such as 2:00:00, not “abc”');
    expect(problemOfOption(time, '30 UNLIMITED', trans)).toContain('not “30 UNLIMITED”');
    expect(problemOfOption({ ...time, pattern: '' }, 'abc', trans)).toBe('');
    expect(problemOfOption({ ...time, example: '', pattern: '\\S+' }, 'a b', trans)).toContain('without spaces');
  });
});

describe('startRequest', () => {
  it('leaves to the server what the form leaves open', () => {
    const sent = startRequest(form(), launch());
    expect(sent).toEqual({
      at: null,
      launcher: 'local',
      nnodes: null,
      nproc_per_node: null,
      backend: null,
      name: null,
      hosts: null,
      launcher_args: null
    });
  });

  it('sends only the fields of the launcher that is chosen', () => {
    const options = { [optionKey('slurm', '--partition')]: ' gpu ', [optionKey('ray', '--address')]: 'auto' };
    const typed = { hosts: 'a,b', nnodes: '2', launcher_args: '--gres "gpu: 4"', options };
    expect(startRequest(form(typed), launch())).toMatchObject({ hosts: null, nnodes: 2, launcher_args: null });
    expect(startRequest(form({ ...typed, launcher: 'ssh' }), launch())).toMatchObject({ hosts: 'a,b', nnodes: null });
    const words = ['--partition', 'gpu', '--gres', 'gpu: 4'];
    expect(startRequest(form({ ...typed, launcher: 'slurm' }), launch())).toMatchObject({ launcher_args: words });
  });

  it('splits words as a shell does', () => {
    expect(splitWords(`-a  --b='c d' "e"f`)).toEqual(['-a', '--b=c d', 'ef']);
  });
});

describe('the host of a start', () => {
  it('is this computer unless one is named', () => {
    expect(startRequest(form(), launch()).at).toBeNull();
    expect(startRequest(form({ at: ' login ' }), launch()).at).toBe('login');
  });

  it('is logged in to with the Python that is named there', () => {
    const typed = form({ at: 'login', python: ' ml ', install: true });
    expect(loginOptions(typed)).toEqual({ python: 'ml', install: true });
    expect(loginOptions(form({ at: 'login' }))).toEqual({ python: '', install: false });
    expect(problemsOf(typed, launch(), trans).python).toBe('');
    expect(problemsOf({ ...typed, python: '-c' }, launch(), trans).python).toContain('not “-c”');
    expect(problemsOf({ ...typed, at: '', python: '-c' }, launch(), trans).python).toBe('');
  });

  it('is chosen from those that were used, that are looked at, and that are configured', () => {
    const names = ['c1', 'login:c1', 'me@gpu:c2'];
    expect(hostChoices(['login', 'other'], ['gpu', 'login'], names)).toEqual(['gpu', 'login', 'me@gpu', 'other']);
  });

  it('is offered first the next time', () => {
    expect(withRecent(['a', 'b'], 'b')).toEqual(['b', 'a']);
    expect(withRecent(['a'], '')).toEqual(['a']);
    expect(withRecent('abcdefgh'.split(''), 'i')).toHaveLength(8);
  });
});
