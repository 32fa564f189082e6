/** The charts of resources in words: titles, the values at one time, and what a screen reader says. Pure. */

import { TranslationBundle } from '@jupyterlab/translation';

import { IDescription } from '../../charts/values';
import { formatWholeSeconds, joinParts } from '../../format';
import { IRunMark, Quantity } from '../../generated/server';
import { IResourceChart } from './lines';
import { rangeText, unitOf, withoutUnit } from './units';

/** At most so many ranks or nodes are listed at a time. */
const MOST_ROWS = 64;

export function titleOf(quantity: Quantity, trans: TranslationBundle): string {
  const titles: Record<Quantity, string> = {
    cpu: trans.__('CPU'),
    memory: trans.__('Memory'),
    gpu: trans.__('GPU load'),
    gpu_memory: trans.__('GPU memory'),
    received: trans.__('Network, received'),
    sent: trans.__('Network, sent')
  };
  return titles[quantity];
}

/** What is measured, for the title's tooltip. */
export function aboutOf({ quantity, by }: IResourceChart, trans: TranslationBundle): string {
  const ofRanks = {
    cpu: trans.__("Busy cores, of the rank's process with its child processes"),
    memory: trans.__("Resident memory of the rank's process"),
    gpu: trans.__("Share of the time in which the rank's GPU is busy"),
    gpu_memory: trans.__("The rank's own where the driver reports it, else that of all processes on its GPU")
  };
  const ofNodes = {
    cpu: trans.__('Busy cores, of those that the ranks may use, by all processes'),
    memory: trans.__('Memory in use on the whole machine'),
    gpu: trans.__('Mean over the GPUs that the ranks see'),
    gpu_memory: trans.__('Sum over the GPUs that the ranks see'),
    received: trans.__('Bytes per second over the network, without the loopback interface'),
    sent: trans.__('Bytes per second over the network, without the loopback interface')
  };
  return quantity === 'received' || quantity === 'sent' || by === 'node' ? ofNodes[quantity] : ofRanks[quantity];
}

/** `1 min`, `1 h`. */
export function windowText(seconds: number, trans: TranslationBundle): string {
  return seconds < 3600 || seconds % 3600
    ? trans.__('%1 min', Math.round(seconds / 60))
    : trans.__('%1 h', seconds / 3600);
}

/** A number on the axis of time, which ends now: `−5 min`, `−4`, …, `now`. */
export function timeText(time: number, seconds: number, trans: TranslationBundle): string {
  if (time === 0) {
    return trans.__('now');
  }
  const isShort = seconds <= 60;
  const number = Math.round(isShort ? -time : -time / 60);
  if (time > -seconds) {
    return `−${number}`;
  }
  return isShort ? trans.__('−%1 s', number) : trans.__('−%1 min', number);
}

/** A number on the axis of values: with its unit only if that of the uppermost one is another. */
export function tickText(value: number, { quantity, data }: IResourceChart, trans: TranslationBundle): string {
  const { text } = unitOf(quantity, trans);
  const top = data.yAxis?.ticks[data.yAxis.ticks.length - 1] ?? 0;
  return value === 0 ? '0' : value === top ? text(top) : withoutUnit(text(value), text(top));
}

/** The values at a time in short: `0.9–3.2 of 64 cores`; empty if nothing is known of it. */
export function summaryOf(chart: IResourceChart, index: number, trans: TranslationBundle): string {
  const { text } = unitOf(chart.quantity, trans);
  const [low, high] = [chart.low[index], chart.high[index]];
  if (typeof low !== 'number' || typeof high !== 'number') {
    return '';
  }
  const value = rangeText(text(low), text(high));
  const total = chart.total && rangeText(text(chart.total[0]), text(chart.total[1]));
  return total ? trans.__('%1 of %2', withoutUnit(value, total), total) : value;
}

/** The values of all ranks or nodes at a time, the selected ones first. */
export function describe(
  chart: IResourceChart,
  index: number,
  runs: IRunMark[],
  trans: TranslationBundle
): IDescription {
  const time = chart.data.x[index] ?? 0;
  const at = time > -1 ? trans.__('now') : trans.__('%1 ago', formatWholeSeconds(-time));
  const head = joinParts(at, ...runsAt(runs, -time).map(({ run, ranks }) => trans.__('run %1 on %2', run, ranks)));
  const { subjects, isBand } = chart;
  const sorted = [...subjects].sort((a, b) => Number(b.isSelected) - Number(a.isSelected));
  const rows = sorted.slice(0, MOST_ROWS).map(({ label, values, order }) => ({
    text: trans.__('%1: %2', label, valueText(chart, values[index], trans)),
    line: order === undefined ? undefined : { role: 'own' as const, order }
  }));
  const more = subjects.length - rows.length;
  return {
    head,
    rows: [
      ...(isBand ? rangeTexts(chart, index, trans) : []),
      ...rows,
      ...(more > 0 ? [{ text: trans.__('… and %1 more', more) }] : [])
    ]
  };
}

/** What a screen reader says of a chart: what it is, and the newest values. */
export function labelOf(chart: IResourceChart, seconds: number, runs: IRunMark[], trans: TranslationBundle): string {
  const { quantity, by, subjects, isBand, data } = chart;
  const last = data.x.length - 1;
  const title = titleOf(quantity, trans);
  const span = windowText(seconds, trans);
  const what =
    by === 'rank'
      ? trans._n('%2 of %1 rank in the last %3', '%2 of %1 ranks in the last %3', subjects.length, title, span)
      : trans._n('%2 of %1 node in the last %3', '%2 of %1 nodes in the last %3', subjects.length, title, span);
  const listed = isBand ? subjects.filter(each => each.order !== undefined) : subjects;
  const values = listed.map(each => `${each.label} ${valueText(chart, each.values[last], trans)}`);
  const newest = [...(isBand ? rangeTexts(chart, last, trans).map(({ text }) => text) : []), ...values].join(', ');
  const active = runs.filter(({ ended }) => ended === null).map(({ run }) => trans.__('run %1 is active', run));
  const hint = trans.__('The arrow keys read earlier values.');
  return [`${what}.`, trans.__('Newest: %1.', newest), ...active.map(text => `${text}.`), hint].join(' ');
}

/** The runs that were active at an age. */
function runsAt(runs: IRunMark[], age: number): IRunMark[] {
  return runs.filter(({ began, ended }) => began >= age && (ended ?? 0) <= age);
}

/** Mean, lowest and highest, and of which rank or node that is. */
function rangeTexts(chart: IResourceChart, index: number, trans: TranslationBundle): { text: string }[] {
  const nameOf = (value: number | null): string =>
    chart.subjects.find(({ values }) => values[index] === value)?.label ?? '';
  const text = (value: number | null): string => valueText(chart, value, trans);
  const [mean, low, high] = [chart.mean[index], chart.low[index], chart.high[index]];
  if (typeof mean !== 'number') {
    return [{ text: trans.__('mean %1', text(mean)) }];
  }
  return [
    { text: trans.__('mean %1', text(mean)) },
    { text: trans.__('lowest %1 (%2)', text(low), nameOf(low)) },
    { text: trans.__('highest %1 (%2)', text(high), nameOf(high)) }
  ];
}

function valueText(chart: IResourceChart, value: number | null | undefined, trans: TranslationBundle): string {
  return typeof value === 'number' ? unitOf(chart.quantity, trans).text(value) : '–';
}
