/** How states and times of ranks are said and marked: a sign and a word each, colours only besides. */

import { TranslationBundle } from '@jupyterlab/translation';

import { IPart, RankState } from './model';

export const SIGNS: Record<RankState, string> = {
  waiting: '○',
  running: '▸',
  value: '✓',
  error: '✗',
  timeout: '⧖',
  interrupted: '■',
  lost: '†'
};

export function stateWord(state: RankState, trans: TranslationBundle): string {
  switch (state) {
    case 'waiting':
      return trans.__('waiting');
    case 'running':
      return trans.__('running');
    case 'value':
      return trans.__('done');
    case 'error':
      return trans.__('failed');
    case 'timeout':
      return trans.__('stopped at the deadline');
    case 'interrupted':
      return trans.__('interrupted');
    case 'lost':
      return trans.__('lost');
  }
}

/** `rank 2, failed after 1.5 s`. */
export function partWords(part: IPart, trans: TranslationBundle): string {
  const state = stateWord(part.state, trans);
  return part.seconds === undefined
    ? trans.__('rank %1, %2', part.rank, state)
    : trans.__('rank %1, %2 after %3', part.rank, state, duration(part.seconds));
}

/** `31 ms`, `0.25 s`, `12 s`, `2 min 5 s`. */
export function duration(seconds: number): string {
  if (seconds < 0.1) {
    return `${Math.round(seconds * 1000)} ms`;
  }
  if (seconds < 10) {
    return `${seconds >= 1 ? seconds.toFixed(1) : seconds.toFixed(2)} s`;
  }
  const whole = Math.floor(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}
