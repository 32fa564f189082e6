import { describe, expect, it } from 'vitest';

import {
  formatMemory,
  formatDuration,
  formatWholeSeconds,
  formatRanks,
  joinParts,
  formatPartOfMemory,
  formatShare,
  formatInterval,
  includesRank,
  parseRanks
} from '../src/format';

describe('times', () => {
  it.each([
    [0, '0 s'],
    [3.9, '3 s'],
    [59.99, '59 s'],
    [60, '1 min 0 s'],
    [125, '2 min 5 s'],
    [3599, '59 min 59 s'],
    [3600, '1 h 0 min'],
    [3840, '1 h 4 min'],
    [90_000, '25 h 0 min']
  ])('%d s are counted in whole seconds', (seconds, text) => expect(formatWholeSeconds(seconds)).toBe(text));

  it.each([
    [0, '0 ms'],
    [0.0312, '31 ms'],
    [0.25, '0.25 s'],
    [0.5, '0.50 s'],
    [1.54, '1.5 s'],
    [10, '10 s'],
    [125.9, '2 min 5 s']
  ])('%d s that somebody waited are as exact as it matters', (seconds, text) =>
    expect(formatDuration(seconds)).toBe(text)
  );

  it.each([
    [0, '0'],
    [4e-7, '0'],
    [6e-7, '0.6 µs'],
    [1.2e-4, '120 µs'],
    [9.994e-4, '999 µs'],
    [9.996e-4, '1 ms'],
    [0.04564, '45.6 ms'],
    [0.9994, '999 ms'],
    [0.9996, '1 s'],
    [1.2345, '1.23 s'],
    [-0.002, '-2 ms'],
    [999.4, '999 s'],
    [12345.6, '12,346 s']
  ])('%d s that were measured have three digits', (seconds, text) => expect(formatInterval(seconds)).toBe(text));
});

describe('sizes', () => {
  it.each([
    [0, '0 MiB'],
    [212 * 2 ** 20, '212 MiB'],
    [1023.4 * 2 ** 20, '1023 MiB'],
    [1023.6 * 2 ** 20, '1.0 GiB'],
    [1.44 * 2 ** 30, '1.4 GiB']
  ])('%d bytes of memory', (count, text) => expect(formatMemory(count)).toBe(text));

  it('of a GPU have one unit', () => expect(formatPartOfMemory(1.2 * 2 ** 30, 141 * 2 ** 30)).toBe('1.2 / 141 GiB'));

  it.each([
    [0, '0 %'],
    [0.904, '90 %'],
    [1, '100 %'],
    [null, ''],
    [undefined, '']
  ])('a share of %s', (share, text) => expect(formatShare(share)).toBe(text));
});

describe('ranks', () => {
  it.each([
    [[], ''],
    [[3], '3'],
    [[0, 1], '0-1'],
    [[5, 2, 0, 1, 1], '0-2,5'],
    [[0, 2, 4], '0,2,4']
  ])('%j are written as a user does', (ranks, text) => expect(formatRanks(ranks)).toBe(text));
});

describe('ranks as a user writes them', () => {
  it('are read', () => {
    expect(parseRanks('0-2,7')).toEqual([0, 1, 2, 7]);
    expect(parseRanks('')).toEqual([]);
  });

  it.each([
    ['0-2,7', [0, 2, 7]],
    ['3-', [3, 7, 70]],
    ['', []],
    [',', []]
  ])('%j includes %j', (ranks, included) => {
    expect([0, 2, 3, 7, 70].filter(rank => includesRank(ranks, rank))).toEqual(included);
  });
});

it('joinParts leaves empty parts out', () => expect(joinParts('a', '', 'b')).toBe('a · b'));
