/** Whose resources are drawn: the ranks or the nodes, with the lines that they get. Pure. */

import { TranslationBundle } from '@jupyterlab/translation';

import { INodeSeries, IResourcesSnapshot } from '../../generated/server';
import { By } from './view';

/** So many ranks or nodes have a line each; of more, the range and the mean are drawn. */
const MOST_LINES = 8;

/** A rank or a node. */
export interface ISubject {
  /** `rank 3`, `node 0 (host-a)`. */
  label: string;
  /** The same in the legend: `3`, `0 host-a`. */
  name: string;
  /** A rank, or all ranks of a node. */
  ranks: number[];
  isSelected: boolean;
  /** The number of its colour; undefined if it has no line of its own. */
  order?: number;
  /** Where it is among the nodes of the answer. */
  node: number;
  series: INodeSeries['series'];
}

/** Those that are drawn. */
export interface ISubjects {
  by: By;
  shown: ISubject[];
  /** How many there are if only the selected ones are shown, else 0. */
  of: number;
  /** Whether the range and the mean of them are drawn, rather than a line for each. */
  isBand: boolean;
}

/** The ranks or the nodes of an answer; `selected` are the ranks selected in the table. */
export function subjectsOf(
  found: IResourcesSnapshot,
  by: By,
  selected: Set<number>,
  trans: TranslationBundle
): ISubjects {
  const all = by === 'rank' ? ranksOf(found, selected, trans) : nodesOf(found, selected, trans);
  const chosen = all.filter(each => each.isSelected);
  const isBand = all.length > MOST_LINES;
  const isRestricted = isBand && chosen.length > MOST_LINES;
  if (isBand && !isRestricted) {
    chosen.forEach((each, i) => (each.order = i + 1)); // the mean has the first colour
  } else if (!isBand) {
    all.forEach((each, i) => (each.order = !chosen.length || each.isSelected ? i : undefined));
  }
  return { by, shown: isRestricted ? chosen : all, of: isRestricted ? all.length : 0, isBand };
}

function ranksOf(found: IResourcesSnapshot, selected: Set<number>, trans: TranslationBundle): ISubject[] {
  const all = found.nodes.flatMap(({ ranks }, node) =>
    ranks.map(({ rank, series }) => ({
      label: trans.__('rank %1', rank),
      name: String(rank),
      ranks: [rank],
      isSelected: selected.has(rank),
      node,
      series
    }))
  );
  return all.sort((a, b) => a.ranks[0] - b.ranks[0]);
}

function nodesOf(found: IResourcesSnapshot, selected: Set<number>, trans: TranslationBundle): ISubject[] {
  return found.nodes.map(({ node: number, hostname, series, ranks }, node) => ({
    label: trans.__('node %1 (%2)', number, hostname),
    name: `${number} ${hostname}`,
    ranks: ranks.map(({ rank }) => rank),
    isSelected: ranks.some(({ rank }) => selected.has(rank)),
    node,
    series
  }));
}
