import { describe, expect, it } from 'vitest';

import { parseFilter } from '../src/panel/ranks/filter';
import { cluster, rank, trans } from './samples';

const EIGHT = cluster({
  world_size: 8,
  ranks: Array.from({ length: 8 }, (_, number) => rank(number)),
  groups: [{ name: 'odd', ranks: [1, 3, 5, 7] }],
  mesh: { names: ['dp', 'tp'], sizes: [4, 2] }
});

function parse(text: string): [ranks: string, words: string[], problem: string] {
  const { ranks, words, problem } = parseFilter(text, EIGHT, trans);
  return [ranks ? [...ranks].sort((a, b) => a - b).join() : 'any', words, problem];
}

describe('the filter', () => {
  it.each([
    ['', 'any', []],
    ['3', '3', []],
    ['0-2,7', '0,1,2,7', []],
    ['0-2, 7', '0,1,2,7', []],
    ['5-', '5,6,7', []],
    ['-2', '6', []],
    ['!2', '0,1,3,4,5,6,7', []],
    ['0-3,!2', '0,1,3', []],
    ['!odd', '0,2,4,6', []],
    ['odd', '1,3,5,7', []],
    ['odd 0-3', '1,3', []],
    ['node=1', '2,3', []],
    ['dp=1', '2,3', []],
    ['tp = 1', '1,3,5,7', []],
    ['dp=0,dp=3', '0,1,6,7', []],
    ['all', '0,1,2,3,4,5,6,7', []],
    ['Running node1 0-3', '0,1,2,3', ['running', 'node1']],
    ['lr=0.1', 'any', ['lr=0.1']],
    ['step(batch)', 'any', ['step(batch)']]
  ])('%j names ranks as a cell does, and words', (text, ranks, words) => {
    expect(parse(text)).toEqual([ranks, words, '']);
  });

  it.each([
    ['9', 'no rank 9: there are 8'],
    ['3-1', 'runs backwards'],
    ['0,', ''],
    ['0,od', '“od” names no rank'],
    ['dp=', 'needs a number'],
    ['dp=4', 'has the size 4'],
    ['pp=0', 'no mesh dimension “pp”'],
    ['node=9', 'no node 9'],
    ['1,!1', 'leaves no rank'],
    [',', 'leaves no rank'],
    ['!nobody', '“nobody” names no rank']
  ])('%j: says what it does not understand', (text, problem) => {
    const [, , found] = parse(text);
    expect(found).toContain(problem);
    expect(found === '').toBe(problem === '');
  });

  it('takes the rest into account', () => {
    expect(parse('idle 9 0-1')).toEqual(['0,1', ['idle'], 'There is no rank 9: there are 8, numbered from 0.']);
  });
});
