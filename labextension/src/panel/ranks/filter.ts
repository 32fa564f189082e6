/** The filter of the table: ranks as `-r` of a cell takes them (jdist/core/ranks.py), and words of what is shown. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster } from '../../api';

export interface IFilter {
  /** The ranks that the filter names; null: it names none. */
  ranks: Set<number> | null;
  /** Words that occur in what is shown of a rank, in lower case. */
  words: string[];
  /** What is not understood, and so not taken into account; empty if all is. */
  problem: string;
}

const RANGE = /^(-?\d{1,9})(-(-?\d{1,9})?)?$/;
const COORDINATE = /^([^=]*)=(.*)$/;
/** What is meant to name ranks, rather than a word: it begins with a number or an exclamation mark, or has a `=`. */
const MEANS_RANKS = /^!|^-?\d+(-|,|$)|,|^[^\s=]+=\d*$/;

class NotUnderstood extends Error {}

/** Parts separated by spaces apply together; `0-3, 7` is one part. */
export function parseFilter(text: string, cluster: ICluster, trans: TranslationBundle): IFilter {
  const names = new Set(['all', '*', 'world', ...(cluster.groups ?? []).map(group => group.name)]);
  const filter: IFilter = { ranks: null, words: [], problem: '' };
  for (const part of text
    .replace(/\s*([,=])\s*/g, '$1')
    .replace(/!\s+/g, '!')
    .split(/\s+/)
    .filter(Boolean)) {
    if (!names.has(part) && !MEANS_RANKS.test(part)) {
      filter.words.push(part.toLowerCase());
      continue;
    }
    try {
      const found = ranksOf(part, cluster, trans);
      const before = filter.ranks;
      filter.ranks = before ? new Set(found.filter(rank => before.has(rank))) : new Set(found);
    } catch (error) {
      if (!(error instanceof NotUnderstood)) {
        throw error;
      }
      filter.problem ||= error.message;
    }
  }
  return filter;
}

/** The ranks of `0-3,7`, `!2`, `node=1,dp=0` or a group's name. */
function ranksOf(text: string, cluster: ICluster, trans: TranslationBundle): number[] {
  const included = new Set<number>();
  const excluded = new Set<number>();
  for (const part of text.split(',').filter(Boolean)) {
    const isExcluded = part.startsWith('!');
    ranksOfPart(part.replace(/^!+/, ''), cluster, trans).forEach(rank => (isExcluded ? excluded : included).add(rank));
  }
  if (!included.size) {
    (excluded.size ? numbers(cluster) : []).forEach(rank => included.add(rank));
  }
  const chosen = [...included].filter(rank => !excluded.has(rank));
  if (!chosen.length) {
    throw new NotUnderstood(trans.__('“%1” leaves no rank.', text));
  }
  return chosen;
}

function ranksOfPart(part: string, cluster: ICluster, trans: TranslationBundle): number[] {
  if (['all', '*', 'world'].includes(part)) {
    return numbers(cluster);
  }
  const group = cluster.groups?.find(each => each.name === part);
  if (group) {
    return group.ranks;
  }
  const coordinate = COORDINATE.exec(part);
  if (coordinate) {
    return ranksAt(coordinate[1], coordinate[2], cluster, trans);
  }
  const range = RANGE.exec(part);
  if (!range) {
    throw new NotUnderstood(trans.__('“%1” names no rank or group: write 0-3,7, node=1, !2 or a word.', part));
  }
  const size = sizeOf(cluster);
  const first = rankOf(range[1], size, trans);
  const last = range[2] === undefined ? first : range[3] === undefined ? size - 1 : rankOf(range[3], size, trans);
  if (last < first) {
    throw new NotUnderstood(trans.__('The range %1 runs backwards.', part));
  }
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
}

/** The rank of a number, which counts from the end if it is negative. */
function rankOf(text: string, size: number, trans: TranslationBundle): number {
  const rank = Number(text);
  if (rank >= size || rank < -size) {
    throw new NotUnderstood(trans.__('There is no rank %1: there are %2, numbered from 0.', text, size));
  }
  return rank < 0 ? rank + size : rank;
}

/** The ranks of a node, or of a place in a dimension of the mesh. */
function ranksAt(name: string, text: string, cluster: ICluster, trans: TranslationBundle): number[] {
  if (!/^\d{1,9}$/.test(text)) {
    throw new NotUnderstood(trans.__('“%1=” needs a number, such as %1=0.', name));
  }
  const index = Number(text);
  if (name === 'node') {
    const found = (cluster.ranks ?? []).filter(rank => rank.node === index).map(rank => rank.rank);
    if (!found.length) {
      throw new NotUnderstood(trans.__('There is no node %1.', index));
    }
    return found;
  }
  const { names, sizes } = cluster.mesh ?? { names: [], sizes: [] };
  const dimension = names.indexOf(name);
  if (dimension < 0) {
    throw new NotUnderstood(trans.__('There is no mesh dimension “%1”.', name));
  }
  if (index >= sizes[dimension]) {
    throw new NotUnderstood(trans.__('The mesh dimension %1 has the size %2.', name, sizes[dimension]));
  }
  const stride = sizes.slice(dimension + 1).reduce((product, size) => product * size, 1);
  return numbers(cluster).filter(rank => Math.floor(rank / stride) % sizes[dimension] === index);
}

function sizeOf(cluster: ICluster): number {
  return cluster.world_size ?? Math.max(0, ...(cluster.ranks ?? []).map(each => each.rank + 1));
}

function numbers(cluster: ICluster): number[] {
  return Array.from({ length: sizeOf(cluster) }, (_, rank) => rank);
}
