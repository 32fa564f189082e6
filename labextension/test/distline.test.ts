import { describe, expect, it } from 'vitest';

import { choiceOf, isForRanks, otherMagic, withChoice, withoutLine } from '../src/toolbar/distline';

describe('the choice of a cell', () => {
  it.each([
    ['%%dist\nx', {}],
    ['%%dist -r 0-1\nx', { ranks: '0-1' }],
    ['%%dist -r0-1 -t 5m', { ranks: '0-1' }],
    ['%%dist --ranks=!2 --hold\n', { ranks: '!2' }],
    ['%%dist --ranks "0, 2"\n', { ranks: '0, 2' }],
    ['%%dist -t 5m -g tp\n', { group: 'tp' }],
    ['%%dist --group="left half"\n', { group: 'left half' }],
    ['%%dist -br 3\n', { ranks: '3' }],
    ['# why\n\n%%dist -r dp=0\nx', { ranks: 'dp=0' }],
    ['%%dist -r 0 -r 1', { ranks: '1' }]
  ])('of %j', (source, choice) => {
    expect(choiceOf(source)).toEqual(choice);
    expect(isForRanks(source)).toBe(true);
  });

  it.each(['', 'x = 1', '%%distance\nx', '%dist status', 'x\n%%dist', '%%time\n%%dist'])('is none in %j', source => {
    expect(choiceOf(source)).toBeNull();
    expect(isForRanks(source)).toBe(false);
  });
});

describe('the choice of a cell while auto is on', () => {
  it.each(['x = 1', '# why\n\nx = 1', '  y', 'x\n%%bash'])('is all ranks in %j', source => {
    expect(choiceOf(source, true)).toEqual({});
    expect(choiceOf(source)).toBeNull();
  });

  it.each(['', '\n# only words', '%dist status', '!ls', '# why\n%%bash\nls', 'get_ipython().x'])(
    'is none in %j',
    source => {
      expect(choiceOf(source, true)).toBeNull();
    }
  );

  it('is that of its line', () => expect(choiceOf('%%dist -r 1\nx', true)).toEqual({ ranks: '1' }));
});

describe('another magic', () => {
  it.each([
    ['%%bash\nls', '%%bash'],
    ['# comment\n%%time\nx', '%%time'],
    ['%%dist -r 0\nx', ''],
    ['x = 1\n%%bash', ''],
    ['', '']
  ])('in %j', (source, magic) => {
    expect(otherMagic(source)).toBe(magic);
  });
});

describe('a new choice', () => {
  it.each([
    ['', {}, '%%dist\n'],
    ['x = 1', { ranks: '0-1' }, '%%dist -r 0-1\nx = 1'],
    ['%%dist\nx', { group: 'tp' }, '%%dist -g tp\nx'],
    ['%%dist -r 0-1\nx', {}, '%%dist\nx'],
    ['%%dist -r 0-1\nx', { ranks: 'dp=0' }, '%%dist -r dp=0\nx'],
    ['%%dist -g tp\nx', { ranks: '2' }, '%%dist -r 2\nx'],
    ['# why\n%%dist --hold\nx', { ranks: '2' }, '# why\n%%dist -r 2 --hold\nx'],
    ['%%dist\nx', { group: 'left half' }, '%%dist -g "left half"\nx']
  ])('in %j: %j', (source, choice, expected) => {
    expect(withChoice(source, choice)).toBe(expected);
  });

  it.each([
    ['%%dist -t 5m -r 0-1 -o out', '%%dist -r 3 -t 5m -o out'],
    ['%%dist --timeout=5m --ranks=0-1 --lead 1', '%%dist -r 3 --timeout=5m --lead 1'],
    ['%%dist -p loss,acc -br 0 --profile "a file.json"', '%%dist -r 3 -p loss,acc -b --profile "a file.json"'],
    ['%%dist --profile -g tp --profile-steps wait=1,active=3', '%%dist -r 3 --profile --profile-steps wait=1,active=3'],
    ["%%dist -r '0, 2' --setup --local", '%%dist -r 3 --setup --local']
  ])('keeps the other options of %j', (line, expected) => {
    expect(withChoice(`${line}\nx = 1\n`, { ranks: '3' })).toBe(`${expected}\nx = 1\n`);
  });

  it('reads back as it was given', () => {
    for (const choice of [{}, { ranks: '0-3,!2' }, { ranks: '0, 2' }, { group: 'a "b" c' }]) {
      expect(choiceOf(withChoice('%%dist -r 9 -t 1\nx', choice))).toEqual(choice);
    }
  });
});

describe('this notebook only', () => {
  it.each([
    ['%%dist -r 0\nx = 1', 'x = 1'],
    ['# why\n%%dist\nx', '# why\nx'],
    ['%%dist', ''],
    ['x = 1', 'x = 1'],
    ['%%bash\nls', '%%bash\nls']
  ])('in %j', (source, expected) => {
    expect(withoutLine(source)).toBe(expected);
  });
});
