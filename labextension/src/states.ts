/** The states of ranks, of their parts in a run, and of clusters: a sign, a label and a CSS class for each. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster, IRank } from './api';
import { formatAge, formatWholeSeconds, joinParts } from './format';

/** What the state means to the user; it chooses the CSS class `jdist-mod-<tone>`. */
export type Tone = 'idle' | 'busy' | 'pending' | 'warn' | 'bad';

/** A state as it is shown. Sign and label say everything; the colour of the tone only repeats them. */
export interface IState {
  sign: string;
  label: string;
  tone: Tone;
}

/** How a rank's part in a run stands; `value` means that it has ended without an error. */
export type OutcomeState = 'waiting' | 'running' | 'paused' | 'value' | 'error' | 'timeout' | 'interrupted' | 'lost';

type Entry = [sign: string, tone: Tone, label: (trans: TranslationBundle) => string];

/** The sign of a verdict: the run does not move, or cannot finish. */
export const VERDICT_SIGN = '●';

/** The states of a rank in the panel; the signs are those of `jdist.panel` in a notebook, too. */
const RANKS: Record<string, Entry> = {
  idle: ['○', 'idle', trans => trans.__('idle')],
  running: ['▶', 'busy', trans => trans.__('running')],
  paused: ['⏸', 'warn', trans => trans.__('paused')],
  pausing: ['⏸', 'pending', trans => trans.__('pausing')],
  starting: ['◔', 'pending', trans => trans.__('starting')],
  unresponsive: ['✕', 'bad', trans => trans.__('unresponsive')],
  unreachable: ['⚠', 'bad', trans => trans.__('unreachable')],
  gone: ['✕', 'bad', trans => trans.__('gone')],
  unknown: ['◔', 'pending', trans => trans.__('unknown')]
};

const OUTCOMES: Record<OutcomeState, Entry> = {
  waiting: ['○', 'pending', trans => trans.__('waiting')],
  running: ['▶', 'busy', trans => trans.__('running')],
  paused: ['⏸', 'warn', trans => trans.__('paused')],
  value: ['✓', 'idle', trans => trans.__('done')],
  error: ['✗', 'bad', trans => trans.__('failed')],
  timeout: ['⧖', 'bad', trans => trans.__('timed out')],
  interrupted: ['■', 'warn', trans => trans.__('interrupted')],
  lost: ['†', 'bad', trans => trans.__('lost')]
};

const CLUSTERS: Record<string, Entry> = {
  starting: ['◔', 'pending', trans => trans.__('starting')],
  'start failed': ['✕', 'bad', trans => trans.__('start failed')],
  gathering: ['◔', 'pending', trans => trans.__('waiting for ranks')],
  forming: ['◔', 'pending', trans => trans.__('forming its groups')],
  idle: ['○', 'idle', trans => trans.__('idle')],
  busy: ['▶', 'busy', trans => trans.__('running')],
  paused: ['⏸', 'warn', trans => trans.__('paused')],
  stuck: ['▶', 'busy', trans => trans.__('waits')],
  doomed: ['✕', 'bad', trans => trans.__('cannot finish')],
  stopping: ['◔', 'pending', trans => trans.__('stopping')],
  failed: ['✕', 'bad', trans => trans.__('failed')],
  silent: ['✕', 'bad', trans => trans.__('does not answer')],
  orphaned: ['✕', 'bad', trans => trans.__('controller gone')],
  foreign: ['✕', 'bad', trans => trans.__('another version')],
  connecting: ['◔', 'pending', trans => trans.__('connecting')],
  unreachable: ['✕', 'bad', trans => trans.__('not logged in')],
  reconnecting: ['◔', 'warn', trans => trans.__('reconnecting')]
};

/** What the table says of a state; a state that it does not have, as of a newer server, is shown by its name. */
function lookUp(table: Record<string, Entry>, state: string, trans: TranslationBundle): IState {
  const [sign, tone, label] = table[state] ?? ['◔', 'pending', () => state];
  return { sign, tone, label: label(trans) };
}

/** The state of a rank; without a row nothing is known of it yet. */
export function rankState(rank: IRank | undefined, trans: TranslationBundle): IState {
  const state = rank?.state ?? 'unknown';
  if (state === 'running' && rank?.doing?.kind === 'silent') {
    return lookUp(RANKS, 'unresponsive', trans);
  }
  return lookUp(RANKS, state === 'running' && rank?.is_pausing ? 'pausing' : state, trans);
}

/** The state of a rank's part in a run. */
export function outcomeState(state: OutcomeState, trans: TranslationBundle): IState {
  return lookUp(OUTCOMES, state, trans);
}

/** Whether a rank's part in a run has failed by itself; one that was interrupted has not. */
export function isFailure(state: OutcomeState): boolean {
  return state === 'error' || state === 'timeout' || state === 'lost';
}

/** The host of a cluster `HOST:NAME`; empty if it is one of the Jupyter server's host. */
export function hostOf(name: string): string {
  return name.slice(0, Math.max(0, name.lastIndexOf(':')));
}

/** Whether a login of the server's is missing that the user can make. */
export function needsLogin(cluster: ICluster): boolean {
  return cluster.state === 'unreachable' || cluster.state === 'reconnecting';
}

/**
 * The state of a cluster: how its start stands, what its runs do, or why it cannot be used. Where it is drawn again each
 * second, `now` has it count the seconds of a broken login.
 */
export function clusterState(cluster: ICluster, trans: TranslationBundle, now?: number): IState {
  if (cluster.starting !== undefined) {
    return lookUp(CLUSTERS, cluster.starting === null ? 'start failed' : 'starting', trans);
  }
  if (cluster.state === 'reconnecting' && now !== undefined) {
    const time = formatWholeSeconds((now - asOf(cluster, null, now)) / 1000);
    return { ...lookUp(CLUSTERS, cluster.state, trans), label: trans.__('reconnecting (%1)', time) };
  }
  if (cluster.state !== 'ready') {
    return lookUp(CLUSTERS, cluster.state, trans);
  }
  if (cluster.verdicts?.some(each => each.is_certain)) {
    return lookUp(CLUSTERS, 'doomed', trans);
  }
  const paused = cluster.runs?.find(each => each.state === 'paused');
  if (paused) {
    return { ...lookUp(CLUSTERS, 'paused', trans), label: trans.__('run %1 is paused', paused.number) };
  }
  if (cluster.verdicts?.length) {
    return lookUp(CLUSTERS, 'stuck', trans);
  }
  const [run, ...others] = cluster.runs ?? [];
  if (!run) {
    return lookUp(CLUSTERS, 'idle', trans);
  }
  const label = others.length
    ? trans.__('%1 runs', others.length + 1)
    : trans.__('run %1: %2/%3 done', run.number, run.done, run.count);
  return { ...lookUp(CLUSTERS, 'busy', trans), label };
}

/** Which node is being added and what it waits for, or why none could be; empty if none is. */
export function addingText({ adding }: ICluster, trans: TranslationBundle): string {
  if (adding?.state === 'failed') {
    return trans.__('No node could be added: %1', adding.text);
  }
  if (adding?.state !== 'adding') {
    return '';
  }
  const what = trans._n('Adding a node', 'Adding node %2 of %1', adding.count, adding.done + 1);
  return adding.text ? trans.__('%1: %2', what, adding.text) : `${what}…`;
}

/** `8/8 ranks · gloo · idle`. */
export function clusterLine(cluster: ICluster, trans: TranslationBundle): string {
  const ranks = cluster.world_size ? trans.__('%1/%2 ranks', cluster.ready ?? 0, cluster.world_size) : cluster.name;
  return joinParts(ranks, cluster.backend ?? '', clusterState(cluster, trans).label);
}

/** `4 ranks · 2 nodes · gloo`, as far as it is known. */
export function clusterSize(cluster: ICluster, trans: TranslationBundle): string {
  const { world_size: ranks, nnodes: nodes, backend } = cluster;
  return joinParts(
    ranks ? trans._n('%1 rank', '%1 ranks', ranks) : '',
    nodes ? trans._n('%1 node', '%1 nodes', nodes) : '',
    backend ?? ''
  );
}

/**
 * What a rank is doing: `all_reduce #3 of tp, 12 s · run 7`, `3 s at line 2: time.sleep(9) · run 7`; empty for an idle
 * rank. The time goes on from when the server reported it to `now`, in milliseconds of `Date.now()`.
 */
export function activity(rank: IRank, now: number, trans: TranslationBundle): string {
  const { doing } = rank;
  const run = rank.run ? trans.__('run %1', rank.run) : '';
  if (rank.paused) {
    return joinParts(rank.paused.text, rank.run === rank.paused.run ? '' : trans.__('a cell of %1', run));
  }
  if (!doing) {
    return rank.state === 'gone' ? lastDeath(rank, now, trans) : run || replacement(rank, now, trans);
  }
  if (doing.kind === 'silent') {
    return joinParts(trans.__('does not answer: %1', doing.process), run);
  }
  const time = formatWholeSeconds(doing.seconds + Math.max(0, now - (rank.receivedAt ?? now)) / 1000);
  if (doing.kind === 'python' && doing.line) {
    return joinParts(trans.__('%1 at line %2: %3', time, doing.line, doing.source.trim()), run);
  }
  const number = doing.number ? ` #${doing.number}` : '';
  const group = doing.group && doing.group !== 'world' ? ` ${trans.__('of %1', doing.group)}` : '';
  const what = doing.waits_for ? trans.__('waits for %1', doing.waits_for) : `${doing.op}${number}${group}`;
  return joinParts(`${what}, ${time}`, run);
}

/** Why and when the rank's last process ended: `killed by SIGKILL, 12 s ago`; empty if it still has its first. */
export function lastDeath(rank: IRank, now: number, trans: TranslationBundle): string {
  return rank.death ? trans.__('%1, %2 ago', rank.death, formatAge(deathAge(rank, now))) : '';
}

/** That the rank was replaced, and when; empty if it has its variables. */
function replacement(rank: IRank, now: number, trans: TranslationBundle): string {
  if (!rank.is_fresh) {
    return '';
  }
  return rank.death
    ? trans.__('replaced %1 ago: earlier variables are lost', formatAge(deathAge(rank, now)))
    : trans.__('replaced: earlier variables are lost');
}

function deathAge(rank: IRank, now: number): number {
  return rank.death_age + Math.max(0, now - (rank.receivedAt ?? now)) / 1000;
}

/**
 * The time at which the cluster was as described, in milliseconds of `Date.now()`: `now`, unless it does not answer, or the
 * Jupyter server cannot be reached since `lostAt`.
 */
export function asOf(cluster: ICluster, lostAt: number | null, now: number): number {
  const answeredAt = cluster.age === undefined ? now : (cluster.receivedAt ?? now) - 1000 * cluster.age;
  return Math.min(now, answeredAt, lostAt ?? now);
}

/** `as of 12 s ago`; empty if the cluster is as described. */
export function staleness(cluster: ICluster, lostAt: number | null, now: number, trans: TranslationBundle): string {
  const then = asOf(cluster, lostAt, now);
  return then < now ? trans.__('as of %1 ago', formatAge((now - then) / 1000)) : '';
}
