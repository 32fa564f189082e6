import { describe, expect, it } from 'vitest';

import { IVerdictRow } from '../src/generated/server';
import {
  activity,
  asOf,
  clusterLine,
  clusterSize,
  clusterState,
  hostOf,
  isFailure,
  needsLogin,
  OutcomeState,
  outcomeState,
  rankState,
  staleness
} from '../src/states';
import { cluster, doing, rank, trans } from './samples';

describe('the state of a rank', () => {
  it.each([
    ['idle', '○', 'idle', 'idle'],
    ['running', '▶', 'running', 'busy'],
    ['starting', '◔', 'starting', 'pending'],
    ['unreachable', '⚠', 'unreachable', 'bad'],
    ['gone', '✕', 'gone', 'bad']
  ])('%s', (state, sign, label, tone) => expect(rankState(rank(0, { state }), trans)).toEqual({ sign, label, tone }));

  it('is unresponsive if only its agent answers', () => {
    const silent = rank(0, { state: 'running', doing: doing({ kind: 'silent' }) });
    expect(rankState(silent, trans)).toEqual({ sign: '✕', label: 'unresponsive', tone: 'bad' });
  });

  it('is pausing while it has been asked to pause', () => {
    const asked = rank(0, { state: 'running', is_pausing: true });
    expect(rankState(asked, trans)).toEqual({ sign: '⏸', label: 'pausing', tone: 'pending' });
    expect(rankState(rank(0, { state: 'paused' }), trans)).toEqual({ sign: '⏸', label: 'paused', tone: 'warn' });
  });

  it('is unknown without a row', () => expect(rankState(undefined, trans).label).toBe('unknown'));

  it('of a newer server has its name', () => {
    expect(rankState(rank(0, { state: 'frozen' }), trans)).toEqual({ sign: '◔', label: 'frozen', tone: 'pending' });
  });
});

describe("the state of a rank's part in a run", () => {
  const states: OutcomeState[] = ['waiting', 'running', 'paused', 'value', 'error', 'timeout', 'interrupted', 'lost'];

  it('has a sign of its own', () => {
    const signs = states.map(state => outcomeState(state, trans).sign);
    expect(signs).toEqual(['○', '▶', '⏸', '✓', '✗', '⧖', '■', '†']);
  });

  it('is a failure if the rank failed by itself', () => {
    expect(states.filter(isFailure)).toEqual(['error', 'timeout', 'lost']);
  });

  it('has the tone of a failure exactly then', () => {
    expect(states.filter(state => outcomeState(state, trans).tone === 'bad')).toEqual(states.filter(isFailure));
  });
});

describe('the state of a cluster', () => {
  const run = { number: 7, state: 'running', ranks: '0-3', count: 4, done: 1, seconds: 2 };
  const verdict: IVerdictRow = {
    run: 7,
    kind: 'missing',
    is_certain: false,
    headline: '',
    details: [],
    responsible: [],
    waiting: [],
    remedies: []
  };

  it.each([
    [cluster(), 'idle', 'idle'],
    [cluster({ runs: [run] }), 'run 7: 1/4 done', 'busy'],
    [cluster({ runs: [run, run] }), '2 runs', 'busy'],
    [cluster({ runs: [run], verdicts: [verdict] }), 'waits', 'busy'],
    [cluster({ runs: [run], verdicts: [verdict, { ...verdict, is_certain: true }] }), 'cannot finish', 'bad'],
    [cluster({ state: 'gathering', runs: [run] }), 'waiting for ranks', 'pending'],
    [cluster({ state: 'silent' }), 'does not answer', 'bad'],
    [cluster({ state: 'orphaned' }), 'controller gone', 'bad'],
    [cluster({ state: 'foreign' }), 'another version', 'bad'],
    [cluster({ state: 'ready', starting: 'node 1 is missing' }), 'starting', 'pending'],
    [cluster({ state: 'starting', starting: null }), 'start failed', 'bad']
  ])('%#', (given, label, tone) => expect(clusterState(given, trans)).toMatchObject({ label, tone }));

  it('is part of its line', () => {
    const given = cluster({ world_size: 8, ready: 7, backend: 'gloo' });
    expect(clusterLine(given, trans)).toBe('7/8 ranks · gloo · idle');
    expect(clusterLine(cluster({ state: 'silent' }), trans)).toBe('c1 · does not answer');
  });

  it('does not change its size', () => {
    expect(clusterSize(cluster({ world_size: 1, nnodes: 1, backend: 'gloo' }), trans)).toBe('1 rank · 1 node · gloo');
    expect(clusterSize(cluster({ world_size: 4, nnodes: 2 }), trans)).toBe('4 ranks · 2 nodes');
    expect(clusterSize(cluster(), trans)).toBe('');
  });
});

describe('what a rank is doing', () => {
  it.each([
    [rank(0), ''],
    [rank(0, { is_fresh: true }), 'replaced: earlier variables are lost'],
    [rank(0, { is_fresh: true, death: 'killed', death_age: 5 }), 'replaced 5 s ago: earlier variables are lost'],
    [rank(0, { is_fresh: true, death: 'killed', run: 7 }), 'run 7'],
    [rank(0, { run: 7 }), 'run 7'],
    [rank(0, { state: 'gone', death: 'out of memory', death_age: 0.5 }), 'out of memory, 0 s ago'],
    [rank(0, { run: 7, doing: doing() }), 'all_reduce #3, 5 s · run 7'],
    [rank(0, { doing: doing({ group: 'tp', number: 0 }) }), 'all_reduce of tp, 5 s'],
    [rank(0, { doing: doing({ waits_for: 'rank 1' }) }), 'waits for rank 1, 5 s'],
    [rank(0, { doing: doing({ kind: 'python', line: 2, source: '  f(x)' }) }), '5 s at line 2: f(x)'],
    [rank(0, { run: 7, doing: doing({ kind: 'silent', process: 'stopped' }) }), 'does not answer: stopped · run 7']
  ])('%#', (given, text) => expect(activity(given, 0, trans)).toBe(text));

  it('takes the longer, the longer ago the server reported it', () => {
    const given = rank(0, { doing: doing({ seconds: 58.5 }), receivedAt: 10_000 });
    expect(activity(given, 10_400, trans)).toBe('all_reduce #3, 58 s');
    expect(activity(given, 12_000, trans)).toBe('all_reduce #3, 1 min 0 s');
    expect(activity(given, 9_000, trans)).toBe('all_reduce #3, 58 s');
  });

  it('has ages that go on by the clock of the page', () => {
    const gone = rank(0, { state: 'gone', death: 'killed', death_age: 0.5, receivedAt: 10_000 });
    expect(activity(gone, 70_000, trans)).toBe('killed, 1 min ago');
    const replaced = rank(0, { is_fresh: true, death: 'killed', death_age: 3600, receivedAt: 10_000 });
    expect(activity(replaced, 130_000, trans)).toBe('replaced 1 h 2 min ago: earlier variables are lost');
  });
});

describe('how old what is shown is', () => {
  it('is said once the cluster or the server does not answer', () => {
    expect(staleness(cluster({ receivedAt: 0 }), null, 60_000, trans)).toBe('');
    expect(staleness(cluster({ state: 'silent', age: 5, receivedAt: 10_000 }), null, 17_000, trans)).toBe(
      'as of 12 s ago'
    );
    expect(staleness(cluster({ receivedAt: 0 }), 10_000, 130_000, trans)).toBe('as of 2 min ago');
    expect(asOf(cluster({ age: 5, receivedAt: 10_000 }), 4_000, 17_000)).toBe(4_000);
  });
});

describe('a cluster of another host', () => {
  it('is known by its name', () => {
    expect(['login:c1', 'me@login:c1', 'c1', ''].map(hostOf)).toEqual(['login', 'me@login', '', '']);
  });

  it('counts the seconds of a broken login', () => {
    const broken = cluster({ name: 'login:c1', state: 'reconnecting', age: 12.3, receivedAt: 1000 });
    expect(clusterState(broken, trans, 1000)).toEqual({ sign: '◔', label: 'reconnecting (12 s)', tone: 'warn' });
    expect(clusterLine(broken, trans), 'where nothing counts').toContain('reconnecting');
    expect(clusterState(broken, trans, 61_000).label).toBe('reconnecting (1 min 12 s)');
  });

  it('can be logged in to where there is no login', () => {
    const states = ['ready', 'connecting', 'reconnecting', 'unreachable'];
    expect(states.map(state => needsLogin(cluster({ state })))).toEqual([false, false, true, true]);
  });
});
