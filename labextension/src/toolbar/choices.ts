/** The choices of ranks that a cluster offers for a cell, and a choice in words. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster } from '../api';
import { formatRanks } from '../format';
import { IChoice } from './distline';

/** At most so many coordinates of a mesh are listed for each of its dimensions. */
const MOST_INDICES = 16;

/** A choice, and its ranks in words if they are known; `some` asks for the ranks. */
export interface IOffer {
  choice: IChoice | 'some';
  label: string;
}

/** `all ranks`, `rank 3`, `ranks 0-1`, `group tp`, `dp=0`. */
export function describeChoice({ ranks, group }: IChoice, trans: TranslationBundle): string {
  if (group) {
    return trans.__('group %1', group);
  }
  if (!ranks || /^(all|\*|world)$/.test(ranks)) {
    return trans.__('all ranks');
  }
  if (/^\d+$/.test(ranks)) {
    return trans.__('rank %1', ranks);
  }
  return /^[\d,\s-]+$/.test(ranks) ? trans.__('ranks %1', ranks) : ranks;
}

/** The named groups; the coordinates of a mesh are listed by `meshOffers`. */
export function groupOffers(cluster: ICluster | undefined, trans: TranslationBundle): IOffer[] {
  const groups = (cluster?.groups ?? []).filter(each => !each.name.includes('='));
  return groups.map(({ name, ranks }) => ({
    choice: { group: name },
    label: trans.__('Group %1: ranks %2', name, formatRanks(ranks))
  }));
}

/** The coordinates of the mesh, such as `dp=0`, and the nodes if there are several. */
export function meshOffers(cluster: ICluster | undefined, trans: TranslationBundle): IOffer[] {
  const { names = [], sizes = [] } = cluster?.mesh ?? {};
  const dimensions = names.map((name, i) => ({ name, size: sizes[i] }));
  if ((cluster?.nnodes ?? 1) > 1) {
    dimensions.push({ name: 'node', size: cluster?.nnodes ?? 0 });
  }
  return dimensions.flatMap(({ name, size }) => {
    const offers: IOffer[] = Array.from({ length: Math.min(size, MOST_INDICES) }, (_, index) => {
      const ranks = ranksOf(cluster, name, index);
      const at = `${name}=${index}`;
      return { choice: { ranks: at }, label: ranks.length ? trans.__('%1: ranks %2', at, formatRanks(ranks)) : at };
    });
    const label = trans.__('%1=%2 to %1=%3: type one…', name, MOST_INDICES, size - 1);
    return size > MOST_INDICES ? [...offers, { choice: 'some', label }] : offers;
  });
}

/** The ranks with this index of a dimension of the mesh, or on this node; none if they are not known. */
function ranksOf(cluster: ICluster | undefined, name: string, index: number): number[] {
  const { names = [], sizes = [] } = cluster?.mesh ?? {};
  const at = names.indexOf(name);
  if (at < 0) {
    return cluster?.nodes?.find(each => each.node === index)?.ranks ?? [];
  }
  const stride = sizes.slice(at + 1).reduce((product, each) => product * each, 1);
  const all = Array.from({ length: cluster?.world_size ?? 0 }, (_, rank) => rank);
  return all.filter(rank => Math.floor(rank / stride) % sizes[at] === index);
}
