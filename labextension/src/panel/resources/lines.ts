/** What the charts of resources draw: the lines of ranks or nodes, or the range of many, over common times. Pure. */

import { TranslationBundle } from '@jupyterlab/translation';

import { IAxis, IChartData, ILine } from '../../charts/linechart';
import { INodeSeries, IResourcesSnapshot, Quantity } from '../../generated/server';
import { commonTimes, ICommonTimes } from './align';
import { ISubject, ISubjects, subjectsOf } from './subjects';
import { timeTicks, unitOf } from './units';
import { By } from './view';

type Values = (number | null)[];

/** How many entries are asked for. */
export const POINTS = 120;
/** The total is drawn unless it is so many times as high as what is used, since that would be flat then. */
const MOST_TOTAL = 3;
/** A line at the upper edge of a chart would be cut in half. */
const HEADROOM = 1.02;

/** The chart of one quantity. */
export interface IResourceChart {
  quantity: Quantity;
  by: By;
  /** Those that are shown and of which something is known, with their values. */
  subjects: (ISubject & { values: Values })[];
  isBand: boolean;
  /** What each of them can use, least and most; null where it is not known. */
  total: [number, number] | null;
  mean: Values;
  low: Values;
  high: Values;
  data: IChartData;
}

/** Charts that draw the same ranks or nodes. */
export interface IChartGroup {
  subjects: ISubjects;
  charts: IResourceChart[];
  /** Why these are nodes, although ranks are shown; empty otherwise. */
  note: string;
}

/** What each rank or node can use; 0 where it is not known, null where there is no such thing. */
const TOTALS: Record<Quantity, ((node: INodeSeries, by: By) => number) | null> = {
  cpu: node => node.cores,
  memory: node => node.memory_total,
  gpu: () => 1,
  // Of a rank: one GPU of its node.
  gpu_memory: (node, by) => node.gpu_memory_total / (by === 'rank' ? node.gpus || 1 : 1),
  received: null,
  sent: null
};
const BY_NODE_ONLY: Quantity[] = ['received', 'sent'];
const QUANTITIES = Object.keys(TOTALS) as Quantity[];

/** The charts of an answer that have data; `selected` are the ranks selected in the table. */
export function chartGroups(
  found: IResourcesSnapshot,
  by: By,
  selected: number[],
  trans: TranslationBundle
): IChartGroup[] {
  const times = commonTimes(
    found.nodes.map(node => node.ages),
    found.seconds,
    POINTS
  );
  const frame = {
    x: times.x,
    xAxis: { range: [-found.seconds, 0], ticks: timeTicks(found.seconds) } satisfies IAxis,
    marks: found.runs.map(({ run, began, ended }) => ({
      from: -began,
      to: -(ended ?? 0),
      label: trans.__('run %1', run),
      short: String(run)
    }))
  };
  const chosen = new Set(selected);
  const groupOf = (by: By, quantities: Quantity[], note = ''): IChartGroup => {
    const subjects = subjectsOf(found, by, chosen, trans);
    const charts = quantities.flatMap(each => chartOf(each, subjects, found.nodes, times, frame, trans));
    return { subjects, charts, note };
  };
  const note = trans.__('By node, since Linux does not account network traffic by process:');
  const perRank = QUANTITIES.filter(each => !BY_NODE_ONLY.includes(each));
  const groups =
    by === 'node' ? [groupOf(by, QUANTITIES)] : [groupOf(by, perRank), groupOf('node', BY_NODE_ONLY, note)];
  return groups.filter(({ charts }) => charts.length);
}

/** The chart of a quantity, or none if nothing is known of it. */
function chartOf(
  quantity: Quantity,
  { by, shown, isBand }: ISubjects,
  nodes: INodeSeries[],
  times: ICommonTimes,
  frame: Pick<IChartData, 'x' | 'xAxis' | 'marks'>,
  trans: TranslationBundle
): IResourceChart[] {
  const subjects = shown
    .map(each => ({ ...each, values: times.align(each.node, each.series[quantity] ?? []) }))
    .filter(({ values }) => values.some(value => value !== null));
  if (!subjects.length) {
    return [];
  }
  const { mean, low, high } = summarize(subjects.map(each => each.values));
  const total = totalOf(quantity, by, subjects.map(each => nodes[each.node])); // prettier-ignore
  const most = Math.max(...high.map(value => value ?? 0));
  const level = total && total[0] === total[1] && total[1] <= MOST_TOTAL * most ? total[1] : undefined;
  const ticks = unitOf(quantity, trans).ticks(Math.max(most, level ?? 0));
  const own = subjects.filter(each => each.order !== undefined).map(lineOf);
  const faint = isBand ? [] : subjects.filter(each => each.order === undefined).map(lineOf);
  const main: ILine[] = isBand ? [{ label: trans.__('mean'), values: mean, role: 'main' }] : [];
  const data: IChartData = {
    ...frame,
    lines: [...faint, ...main, ...own],
    band: isBand ? { low, high } : undefined,
    yAxis: { range: [0, Math.max(ticks[ticks.length - 1], HEADROOM * most)], ticks },
    level: quantity === 'gpu' ? undefined : level
  };
  return [{ quantity, by, subjects, isBand, total: quantity === 'gpu' ? null : total, mean, low, high, data }];
}

function lineOf({ label, values, order }: ISubject & { values: Values }): ILine {
  return order === undefined ? { label, values, role: 'faint' } : { label, values, role: 'own', order };
}

function totalOf(quantity: Quantity, by: By, nodes: INodeSeries[]): [number, number] | null {
  const totals = nodes.map(node => TOTALS[quantity]?.(node, by) ?? 0);
  return totals.every(each => each > 0) ? [Math.min(...totals), Math.max(...totals)] : null;
}

/** The mean and the range at each time, over the values that are known. */
function summarize(all: Values[]): { mean: Values; low: Values; high: Values } {
  const [mean, low, high]: Values[] = [[], [], []];
  for (let i = 0; i < all[0].length; i++) {
    let [sum, count, least, most] = [0, 0, Infinity, -Infinity];
    for (const values of all) {
      const value = values[i];
      if (value !== null) {
        sum += value;
        count += 1;
        least = Math.min(least, value);
        most = Math.max(most, value);
      }
    }
    mean.push(count ? sum / count : null);
    low.push(count ? least : null);
    high.push(count ? most : null);
  }
  return { mean, low, high };
}
