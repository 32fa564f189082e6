import { describe, expect, it } from 'vitest';

import { indexAt, placeOf } from '../src/charts/cursor';
import { chartData, IMetricChart, stepsText, valueText } from '../src/metrics/data';

const chart: IMetricChart = {
  name: 'loss',
  steps: [0, 1, 2],
  mean: [1, 2, null],
  low: [0.5, 2, null],
  high: [1.5, 2, null],
  ranks: [
    { rank: 0, values: [0.5, 2, 'inf'] },
    { rank: 3, values: [1.5, 'NaN', 'NaN'], is_marked: true },
    { rank: 5, values: [1, null, null] }
  ],
  width: 1,
  count: 3
};

describe('a chart of metrics', () => {
  it('has faint lines behind the mean, and marked ones in front of it', () => {
    const { x, lines, band } = chartData(chart, rank => `rank ${rank}`, 'mean');
    expect(x).toEqual([0, 1, 2]);
    expect(lines.map(line => [line.label, line.role])).toEqual([
      ['rank 0', 'faint'],
      ['rank 5', 'faint'],
      ['mean', 'main'],
      ['rank 3', 'marked']
    ]);
    expect(band).toEqual({ low: [0.5, 2, null], high: [1.5, 2, null] });
  });

  it('leaves gaps where there is no finite number', () => {
    const { lines } = chartData(chart, String, 'mean');
    expect(lines.find(line => line.label === '3')?.values).toEqual([1.5, null, null]);
    expect(lines.find(line => line.label === '0')?.values).toEqual([0.5, 2, null]);
  });

  it('of one rank is one line', () => {
    const alone = { ...chart, ranks: chart.ranks.slice(0, 1), count: 1 };
    const { lines, band } = chartData(alone, String, 'mean');
    expect(lines.map(line => line.role)).toEqual(['main']);
    expect(band).toBeUndefined();
  });
});

describe('texts of values', () => {
  it('are short', () => {
    expect([0, 0.12346, 12346000, -1e-7, 99999].map(valueText)).toEqual([
      '0',
      '0.12346',
      '1.2346e+7',
      '-1e-7',
      '99999'
    ]);
    expect(['NaN', '-inf', null].map(valueText)).toEqual(['NaN', '-inf', '–']);
  });

  it('name all steps that an entry stands for', () => {
    const wide = { ...chart, steps: [9, 19, 25], width: 10 };
    expect([0, 1, 2].map(index => stepsText(wide, index))).toEqual(['9', '10–19', '20–25']);
    expect(stepsText(chart, 1)).toBe('1');
  });
});

describe('the cursor of a chart', () => {
  it('moves by keys and stays within', () => {
    expect(indexAt('ArrowRight', -1, 5)).toBe(0);
    expect(indexAt('ArrowRight', 4, 5)).toBe(4);
    expect(indexAt('ArrowLeft', -1, 5)).toBe(4);
    expect(indexAt('ArrowLeft', 0, 5)).toBe(0);
    expect(indexAt('PageDown', 0, 100)).toBe(10);
    expect(indexAt('PageUp', 3, 100)).toBe(0);
    expect([indexAt('Home', 3, 5), indexAt('End', 3, 5)]).toEqual([0, 4]);
    expect([indexAt('Escape', 3, 5), indexAt('Escape', -1, 5)]).toEqual([-1, undefined]);
    expect(indexAt('a', 3, 5)).toBeUndefined();
  });

  it('has its text where there is room', () => {
    expect(placeOf(10, 100, 400)).toBe(22);
    expect(placeOf(390, 100, 400)).toBe(278);
    expect(placeOf(50, 390, 400)).toBe(0);
  });
});
