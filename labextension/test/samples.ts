/** Clusters and ranks for tests, as the server sends them. */

import { nullTranslator } from '@jupyterlab/translation';

import { ICluster, IDoing, IPause, IRank } from '../src/api';

export const trans = nullTranslator.load('jdist');

export function doing(changes: Partial<IDoing> = {}): IDoing {
  const collective = { kind: 'collective', op: 'all_reduce', number: 3, group: 'world', seconds: 5 };
  return { ...collective, line: 0, source: '', cpu: null, waits_for: '', process: '', ...changes };
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
  return { name: 'c1', state: 'ready', reason: '', ...changes };
}

export function pause(changes: Partial<IPause> = {}): IPause {
  const at = { function: 'train_step', line: 8, file: '', of_run: 3 };
  return { run: 7, reason: 'breakpoint', text: 'train_step, line 8: loss.backward()', ...at, ...changes };
}
