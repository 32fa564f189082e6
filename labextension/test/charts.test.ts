import { describe, expect, it } from 'vitest';

import { cssColour, dashOf } from '../src/charts/colours';
import { placeLabels, placeLines, withoutOverlaps } from '../src/charts/marks';

/** Six pixels a letter. */
const widthOf = (text: string): number => 6 * text.length;

function labels(...places: number[]): string[] {
  const marks = places.map((at, i) => ({ at, label: `run ${i + 7}`, short: String(i + 7) }));
  return placeLabels(marks, 200, widthOf).map(({ text, left }) => `${text} @ ${left}`);
}

describe('labels of marks', () => {
  it('begin at their marks', () => {
    expect(labels(20, 100)).toEqual(['run 8 @ 100', 'run 7 @ 20']);
  });

  it('stay within the chart', () => {
    expect(labels(-50, 190)).toEqual(['run 8 @ 170', 'run 7 @ 0']);
  });

  it('are short where there is little room', () => {
    expect(labels(20, 40, 100)).toEqual(['9 @ 100', '8 @ 40', '7 @ 20']);
  });

  it('are left out where there is none, but for the latest', () => {
    expect(labels(20, 24, 26, 60)).toEqual(['10 @ 60', '9 @ 26']);
    const many = labels(...Array.from({ length: 200 }, (_, i) => i));
    expect(many.length).toBeGreaterThan(5);
    expect(many.length).toBeLessThan(20);
  });
});

describe('numbers on an axis', () => {
  it('are left out where they would touch, but for the first and the last', () => {
    const texts = ['−5 min', '−4', '−3', '−2', '−1', 'now'];
    const at = (step: number): number[] => texts.map((_, i) => step * i);
    expect(withoutOverlaps(texts, at(40), widthOf)).toEqual(texts);
    expect(withoutOverlaps(texts, at(26), widthOf)).toEqual(['−5 min', '', '−3', '−2', '−1', 'now']);
    expect(withoutOverlaps(texts, at(14), widthOf)).toEqual(['−5 min', '', '−3', '', '', 'now']);
    expect(withoutOverlaps([], [], widthOf)).toEqual([]);
  });
});

describe('lines of marks', () => {
  it('do not become an area', () => {
    expect(placeLines([10, 11, 12, 40])).toEqual([40, 12]);
    expect(placeLines([])).toEqual([]);
  });
});

describe('lines of several ranks', () => {
  it('differ, also without colours', () => {
    const looks = Array.from({ length: 9 }, (_, order) => ({ role: 'own' as const, order }));
    expect(new Set(looks.map(cssColour)).size).toBe(9);
    const neighbours = looks.slice(1).map((look, i) => [dashOf(looks[i]).join(), dashOf(look).join()]);
    expect(neighbours.filter(([one, next]) => one === next)).toEqual([]);
  });

  it('have colours of the theme only', () => {
    for (const role of ['main', 'faint', 'marked', 'own'] as const) {
      expect(cssColour({ role, order: 3 })).toContain('var(--jp-');
    }
  });
});
