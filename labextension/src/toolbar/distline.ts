/** The line `%%dist …` of a cell: which ranks it chooses, and the cell's text with another choice. */

/** Which ranks a cell runs on: those of `-r`, those of the group of `-g`; neither means all. */
export interface IChoice {
  ranks?: string;
  group?: string;
}

/** The text of a cell, cut at its `%%dist` line. */
interface IParts {
  /** Comments and empty lines above. */
  above: string;
  /** The words after `%%dist`, as they are typed, with their quotes. */
  words: string[];
  /** What follows, with the line's end. */
  below: string;
}

const ABOVE = /^(?:[ \t]*(?:#.*)?\r?\n)*[ \t]*/;
const LINE = /^%%dist(?=\s|$)(.*)/;
const MAGIC = /^%%[^\s]+/;
/** `-r`, `-g`, also behind the short option without a value: `-br 0`. */
const SHORT = /^-(b*)([rg])(.*)$/s;
const LONG = /^--(ranks|group)(?:=(.*))?$/s;
const OPENING = '([{';
const CLOSING = ')]}';

/** Whether the cell begins with `%%dist`. */
export function isForRanks(source: string): boolean {
  return split(source) !== null;
}

/** Whether the cell is one that `%dist auto on` sends to the ranks: its first line of code is neither a magic nor a command. */
function isPlain(source: string): boolean {
  const lines = `${source}\n`; // a comment ends with its line
  return /^(?!%|!|get_ipython\(\))./.test(lines.slice(ABOVE.exec(lines)?.[0].length ?? 0));
}

/** The cell magic with which the cell begins, such as `%%bash`, unless that is `%%dist`; empty if there is none. */
export function otherMagic(source: string): string {
  const below = source.slice(ABOVE.exec(source)?.[0].length ?? 0);
  return LINE.test(below) ? '' : (MAGIC.exec(below)?.[0] ?? '');
}

/**
 * The ranks that the cell's line chooses; null if it has no such line, and runs in the notebook. While `isAuto`, a plain
 * cell without it runs on all ranks.
 */
export function choiceOf(source: string, isAuto = false): IChoice | null {
  const parts = split(source);
  if (!parts) {
    return isAuto && isPlain(source) ? {} : null;
  }
  const choice: IChoice = {};
  separate(parts.words, choice);
  return choice;
}

/** The cell's text with this choice, and with all other options of its line. The cell must have no other magic. */
export function withChoice(source: string, choice: IChoice): string {
  const { above, words, below } = split(source) ?? { above: '', words: [], below: `\n${source}` };
  const chosen = choice.group ? ['-g', quoted(choice.group)] : choice.ranks ? ['-r', quoted(choice.ranks)] : [];
  return above + ['%%dist', ...chosen, ...separate(words)].join(' ') + below;
}

/** The cell's text without its `%%dist` line. */
export function withoutLine(source: string): string {
  const parts = split(source);
  return parts ? parts.above + parts.below.replace(/^\r?\n/, '') : source;
}

function split(source: string): IParts | null {
  const above = ABOVE.exec(source)?.[0] ?? '';
  const line = LINE.exec(source.slice(above.length));
  return line && { above, words: wordsOf(line[1]), below: source.slice(above.length + line[0].length) };
}

/** The words of a line, as jdist divides them: a space inside brackets or quotes divides nothing. */
function wordsOf(line: string): string[] {
  const words: string[] = [];
  let [word, quote, depth, isEscaped] = ['', '', 0, false];
  for (const each of line) {
    if (quote) {
      quote = each === quote && !isEscaped ? '' : quote;
      isEscaped = each === '\\' && !isEscaped;
    } else if (each === '"' || each === "'") {
      quote = each;
    } else if (OPENING.includes(each)) {
      depth += 1;
    } else if (CLOSING.includes(each)) {
      depth -= 1;
    } else if (/\s/.test(each) && depth === 0) {
      words.push(word);
      word = '';
      continue;
    }
    word += each;
  }
  return [...words, word].filter(each => each);
}

/** The words without those that choose ranks, which are noted in `choice`; the last one counts, as for jdist. */
function separate(words: string[], choice: IChoice = {}): string[] {
  const others: string[] = [];
  for (let i = 0; i < words.length; i++) {
    const [short, long] = [SHORT.exec(words[i]), LONG.exec(words[i])];
    if (!short && !long) {
      others.push(words[i]);
      continue;
    }
    if (short?.[1]) {
      others.push(`-${short[1]}`);
    }
    const name = long?.[1] === 'ranks' || short?.[2] === 'r' ? 'ranks' : 'group';
    const attached = long ? long[2] : short?.[3] || undefined;
    choice[name] = unquoted(attached ?? words[++i] ?? '');
  }
  return others;
}

function unquoted(word: string): string {
  const inner = /^(['"])(.*)\1$/s.exec(word);
  return inner ? inner[2] : word;
}

/** The word in quotes, if it would not be one word without them. */
function quoted(word: string): string {
  return /^[^\s'"()[\]{}]+$/.test(word) ? word : word.includes('"') ? `'${word}'` : `"${word}"`;
}

/** The one replacement that makes `after` of `before`. */
export function replacement(before: string, after: string): { start: number; end: number; inserted: string } {
  const most = Math.min(before.length, after.length);
  let start = 0;
  while (start < most && before[start] === after[start]) {
    start += 1;
  }
  let same = 0;
  while (same < most - start && before[before.length - 1 - same] === after[after.length - 1 - same]) {
    same += 1;
  }
  return { start, end: before.length - same, inserted: after.slice(start, after.length - same) };
}
