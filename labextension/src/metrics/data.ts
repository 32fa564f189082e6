/** What `jdist/client/metrics/chart.py` writes into a notebook, and what of it is drawn. Pure. */

import { IChartData } from '../charts/linechart';

export const METRICS_MIME = 'application/vnd.jdist.metrics.v1+json';
export const METRICS_VERSION = 1;

/** null: there is none; a text: one that JSON lacks, such as NaN. */
export type MetricValue = number | string | null;

/** One name. All its columns are as long as `steps`. */
export interface IMetricChart {
  name: string;
  steps: number[];
  /** Over all ranks. */
  mean: MetricValue[];
  low: MetricValue[];
  high: MetricValue[];
  /** All ranks, or those to look at. */
  ranks: { rank: number; values: MetricValue[]; is_marked?: boolean }[];
  /** How many steps an entry stands for, at most. */
  width: number;
  /** The number of all ranks. */
  count: number;
}

/** The metrics of a run. */
export interface IMetricsBundle {
  version: number;
  run: number;
  headline: string;
  charts: IMetricChart[];
  /** The newest numbers as a table. */
  heads: string[];
  rows: string[][];
  /** How many names are not in the table. */
  more: number;
  /** Ranks to look at, in words. */
  marks: string[];
}

/** The lines of one name: each rank's own behind the mean, those of marked ranks in front of it. */
export function chartData(chart: IMetricChart, rankLabel: (rank: number) => string, mean: string): IChartData {
  const lines = chart.ranks.map(({ rank, values, is_marked }) => ({
    label: rankLabel(rank),
    values: values.map(numberOf),
    role: is_marked ? ('marked' as const) : ('faint' as const)
  }));
  const faint = lines.filter(line => line.role === 'faint');
  const marked = lines.filter(line => line.role === 'marked');
  const main = { label: mean, values: chart.mean.map(numberOf), role: 'main' as const };
  const isAlone = chart.count === 1;
  return {
    x: chart.steps,
    lines: isAlone ? [main] : [...faint, main, ...marked],
    band: isAlone ? undefined : { low: chart.low.map(numberOf), high: chart.high.map(numberOf) }
  };
}

function numberOf(value: MetricValue): number | null {
  return typeof value === 'number' ? value : null;
}

/** The text of a number: five digits, as they were sent. */
export function valueText(value: MetricValue): string {
  if (typeof value !== 'number') {
    return value ?? '–';
  }
  const size = Math.abs(value);
  return size && (size < 1e-4 || size >= 1e7) ? value.toExponential() : String(value);
}

/** The steps that an entry stands for, as text. */
export function stepsText(chart: IMetricChart, index: number): string {
  const last = chart.steps[index];
  const first = index ? chart.steps[index - 1] + 1 : chart.steps[0];
  return chart.width > 1 && first < last ? `${first}–${last}` : String(last);
}
