/** Clusters and ranks for tests, as the server sends them. */

import { nullTranslator } from '@jupyterlab/translation';

import { ICluster, IRank } from '../src/api';
import { IActivityRow, INodeSeries, IPauseRow, IResourcesSnapshot } from '../src/generated/server';

export const GIB = 2 ** 30;
export const trans = nullTranslator.load('jdist');

export function doing(changes: Partial<IActivityRow> = {}): IActivityRow {
  const collective = { op: 'all_reduce', number: 3, group: 'world', seconds: 5 };
  return { kind: 'collective', ...collective, line: 0, source: '', cpu: null, waits_for: '', process: '', ...changes };
}

export function rank(number: number, changes: Partial<IRank> = {}): IRank {
  return {
    rank: number,
    node: Math.floor(number / 2),
    local_rank: number % 2,
    hostname: `host-${Math.floor(number / 2)}`,
    pid: 1000 + number,
    state: 'idle',
    run: 0,
    last_line: '',
    is_fresh: false,
    death: '',
    death_age: 0,
    device: '',
    rss: null,
    doing: null,
    progress: [],
    ...changes
  };
}

export function cluster(changes: Partial<ICluster> = {}): ICluster {
  return { name: 'c1', cluster: '', state: 'ready', reason: '', version: '', ...changes };
}

export function pause(changes: Partial<IPauseRow> = {}): IPauseRow {
  const at = { function: 'train_step', line: 8, file: '', of_run: 3 };
  return { run: 7, reason: 'breakpoint', text: 'train_step, line 8: loss.backward()', ...at, ...changes };
}

/** A node with two ranks and two samples, 2 s and 1 s before the answer. */
export function node(number: number, changes: Partial<INodeSeries> = {}): INodeSeries {
  const first = 2 * number;
  return {
    node: number,
    hostname: `host-${number}`,
    cores: 8,
    memory_total: 64 * GIB,
    gpus: 0,
    gpu_memory_total: 0,
    ages: [2, 1],
    series: { cpu: [3, 4], memory: [10 * GIB, 12 * GIB], received: [1e6, 2e6], sent: [0, 0] },
    ranks: [first, first + 1].map(rank => ({ rank, series: { cpu: [rank, rank + 1], memory: [GIB, 2 * GIB] } })),
    ...changes
  };
}

export function resources(changes: Partial<IResourcesSnapshot> = {}): IResourcesSnapshot {
  return { seconds: 60, nodes: [node(0)], runs: [], missing: [], ...changes };
}
