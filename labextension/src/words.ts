/** Words: what clusters and ranks are and do, as people read it. Pure. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster, IRank } from './api';

/** How a state looks beside its word, so that it is told by more than colour. */
export type Mood = 'idle' | 'busy' | 'coming' | 'bad';

export interface IState {
  word: string;
  mood: Mood;
}

/** The group that goes without saying. */
const WORLD = 'world';

const SIGNS: Record<Mood, string> = { idle: '○', busy: '▶', coming: '◌', bad: '✕' };

/** A sign of its own for each mood. */
export function sign(mood: Mood): string {
  return SIGNS[mood];
}

/** Which ranks a way out interrupts, as a user writes them, "" for all; undefined if it does something else. */
export function interrupted(command: string): string | undefined {
  const found = /^%dist\s+interrupt(?:\s+(?:-r|--ranks)[\s=]*(\S+))?\s*$/.exec(command);
  return found ? (found[1] ?? '') : undefined;
}

/** What a cluster is at. */
export function clusterState(cluster: ICluster, trans: TranslationBundle): IState {
  if (cluster.starting !== undefined) {
    return cluster.starting === null
      ? { word: trans.__('start failed'), mood: 'bad' }
      : { word: trans.__('starting'), mood: 'coming' };
  }
  switch (cluster.state) {
    case 'ready':
      return readyState(cluster, trans);
    case 'gathering':
      return { word: trans.__('waiting for ranks'), mood: 'coming' };
    case 'forming':
      return { word: trans.__('forming its groups'), mood: 'coming' };
    case 'stopping':
      return { word: trans.__('stopping'), mood: 'coming' };
    case 'failed':
      return { word: trans.__('failed'), mood: 'bad' };
    case 'silent':
      return { word: trans.__('does not answer'), mood: 'bad' };
    case 'orphaned':
      return { word: trans.__('controller gone'), mood: 'bad' };
    case 'foreign':
      return { word: trans.__('another version'), mood: 'bad' };
    default:
      return { word: cluster.state, mood: 'coming' };
  }
}

function readyState(cluster: ICluster, trans: TranslationBundle): IState {
  const runs = cluster.runs ?? [];
  if (cluster.verdicts?.some(each => each.is_certain)) {
    return { word: trans.__('cannot finish'), mood: 'bad' };
  }
  if (cluster.verdicts?.length) {
    return { word: trans.__('waits'), mood: 'busy' };
  }
  if (!runs.length) {
    return { word: trans.__('idle'), mood: 'idle' };
  }
  const [run] = runs;
  return runs.length > 1
    ? { word: trans.__('%1 runs', runs.length), mood: 'busy' }
    : { word: trans.__('run %1: %2/%3 done', run.number, run.done, run.count), mood: 'busy' };
}

/** What a rank is at. */
export function rankState(rank: IRank, trans: TranslationBundle): IState {
  switch (rank.state) {
    case 'idle':
      return { word: trans.__('idle'), mood: 'idle' };
    case 'running':
      return rank.doing?.kind === 'silent'
        ? { word: trans.__('silent'), mood: 'bad' }
        : { word: trans.__('running'), mood: 'busy' };
    case 'starting':
      return { word: trans.__('starting'), mood: 'coming' };
    case 'held':
      return { word: trans.__('held back'), mood: 'coming' };
    case 'gone':
      return { word: trans.__('gone'), mood: 'bad' };
    case 'cut off':
      return { word: trans.__('cut off'), mood: 'bad' };
    default:
      return { word: rank.state, mood: 'coming' };
  }
}

/** What a rank does: "all_reduce #3 of tp, 12 s · run 7", "3 s at line 2: time.sleep(9) · run 7"; empty for an idle one. `now` as of `Date.now()`. */
export function doing(rank: IRank, now: number, trans: TranslationBundle): string {
  const did = rank.doing;
  const run = rank.run ? trans.__('run %1', rank.run) : '';
  if (!did) {
    return rank.state === 'gone' ? rank.death : run || (rank.is_fresh ? trans.__('fresh: no variables') : '');
  }
  if (did.kind === 'silent') {
    return joined(trans.__('does not answer: %1', did.process), run);
  }
  const time = duration(did.seconds + Math.max(0, now - (rank.heard ?? now)) / 1000);
  if (did.kind === 'python' && did.line) {
    return joined(trans.__('%1 at line %2: %3', time, did.line, did.source.trim()), run);
  }
  const number = did.number ? ` #${did.number}` : '';
  const group = did.group && did.group !== WORLD ? ` ${trans.__('of %1', did.group)}` : '';
  const what = did.waits_for ? trans.__('waits for %1', did.waits_for) : `${did.op}${number}${group}`;
  return joined(`${what}, ${time}`, run);
}

function joined(...parts: string[]): string {
  return parts.filter(part => part).join(' · ');
}

/** "4 ranks · 2 nodes · gloo"; as much of it as is known. */
export function size(cluster: ICluster, trans: TranslationBundle): string {
  const ranks = cluster.world_size;
  const nodes = cluster.nnodes;
  return joined(
    ranks ? trans._n('%1 rank', '%1 ranks', ranks) : '',
    nodes ? trans._n('%1 node', '%1 nodes', nodes) : '',
    cluster.backend ?? ''
  );
}

/** "8/8 ranks · gloo · idle". */
export function line(cluster: ICluster, trans: TranslationBundle): string {
  const ranks = cluster.world_size ? trans.__('%1/%2 ranks', cluster.ready ?? 0, cluster.world_size) : cluster.name;
  return joined(ranks, cluster.backend ?? '', clusterState(cluster, trans).word);
}

/** "3 s", "2 min 5 s", "1 h 4 min". */
export function duration(seconds: number): string {
  const whole = Math.floor(seconds);
  if (whole < 60) {
    return `${whole} s`;
  }
  return whole < 3600
    ? `${Math.floor(whole / 60)} min ${whole % 60} s`
    : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** "212 MiB", "1.4 GiB". */
export function bytes(count: number): string {
  const mebi = count / 2 ** 20;
  return mebi < 1024 ? `${Math.round(mebi)} MiB` : `${(mebi / 1024).toFixed(1)} GiB`;
}

/** "1.2 / 141 GiB": what is taken of a GPU's memory, by the rank where that is known, else by all; "" without a GPU. */
export function gpuMemory(row: IRank): string {
  const { gpu_own, gpu_used, gpu_total } = row;
  const taken = gpu_own ?? gpu_used ?? 0;
  if (!gpu_total) {
    return gpu_own ? bytes(gpu_own) : '';
  }
  return `${(taken / 2 ** 30).toFixed(1)} / ${Math.round(gpu_total / 2 ** 30)} GiB`;
}

/** Which GPU a rank has, and whose memory is counted. */
export function gpu(row: IRank, trans: TranslationBundle): string {
  const { gpu_name, gpu_own, gpu_used, gpu_total } = row;
  const own = typeof gpu_own === 'number' ? trans.__("The rank's process has %1", bytes(gpu_own)) : '';
  const all = gpu_total ? trans.__('All processes have %1 of %2', bytes(gpu_used ?? 0), bytes(gpu_total)) : '';
  return [gpu_name, own, all].filter(each => each).join('\n');
}

/** Ranks as a user writes them: "0-2,5". */
export function written(ranks: number[]): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length;) {
    let end = i;
    while (end + 1 < sorted.length && sorted[end + 1] === sorted[end] + 1) {
      end += 1;
    }
    parts.push(end === i ? `${sorted[i]}` : `${sorted[i]}-${sorted[end]}`);
    i = end + 1;
  }
  return parts.join(',');
}
