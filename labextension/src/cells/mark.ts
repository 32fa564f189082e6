/** The mark of a run beside its cell: in a word, a number and a sign what has become of it; all of it in a longer text. */

import { TranslationBundle } from '@jupyterlab/translation';

import { IRunJson } from '../generated/server';
import { doneCount, partsOf } from '../run/model';
import { isFailure, outcomeState, OutcomeState, VERDICT_SIGN } from '../states';

export interface IMark {
  /** `4/4`, `1 of 4 failed`, `interrupted`. */
  text: string;
  sign: string;
  /** For the tooltip and screen readers: `rank 0-3: …` of all states that occur. */
  label: string;
  state: 'waiting' | 'running' | 'paused' | 'stuck' | 'failed' | 'interrupted' | 'done';
}

/** The states in the order in which the label names them. */
const ORDER: OutcomeState[] = ['value', 'error', 'timeout', 'lost', 'interrupted', 'paused', 'running', 'waiting'];

export function markOf(run: IRunJson, trans: TranslationBundle): IMark {
  const states = partsOf(run).map(part => part.state);
  const label = ORDER.map(state => [state, states.filter(each => each === state).length] as const)
    .filter(([, count]) => count)
    .map(([state, count]) => trans.__('%1 of %2 ranks %3', count, states.length, outcomeState(state, trans).label));
  const mark = ended(states, run, trans) ?? unfinished(states, run, trans);
  if (mark.state === 'stuck') {
    label.push(mark.text);
  }
  return { ...mark, label: label.join(', ') };
}

type Short = Omit<IMark, 'label'>;

/** The mark of a run that is over, or in which a rank has failed. */
function ended(states: OutcomeState[], run: IRunJson, trans: TranslationBundle): Short | undefined {
  const failed = states.filter(isFailure);
  if (failed.length) {
    const [kind] = failed.every(each => each === failed[0]) ? failed : ['error' as const];
    return { ...count(failed.length, states.length, kind, trans), state: 'failed' };
  }
  if (run.state !== 'done') {
    return undefined;
  }
  const interrupted = states.filter(each => each === 'interrupted').length;
  if (interrupted) {
    return { ...count(interrupted, states.length, 'interrupted', trans), state: 'interrupted' };
  }
  return { text: `${states.length}/${states.length}`, sign: outcomeState('value', trans).sign, state: 'done' };
}

/** The mark of a run that goes on, waits, is paused or cannot finish. */
function unfinished(states: OutcomeState[], run: IRunJson, trans: TranslationBundle): Short {
  const paused = states.filter(each => each === 'paused').length;
  if (paused) {
    return { ...count(paused, states.length, 'paused', trans), state: 'paused' };
  }
  if (run.verdict) {
    const text = run.verdict.is_certain ? trans.__('cannot finish') : trans.__('no progress');
    return { text, sign: VERDICT_SIGN, state: 'stuck' };
  }
  if (run.state === 'waiting') {
    const { label, sign } = outcomeState('waiting', trans);
    return { text: label, sign, state: 'waiting' };
  }
  return { text: trans.__('%1/%2 done', doneCount(run), states.length), sign: '', state: 'running' };
}

/** `1 of 4 failed`; if it is so on all ranks, the word alone. */
function count(some: number, all: number, state: OutcomeState, trans: TranslationBundle): Omit<Short, 'state'> {
  const { label, sign } = outcomeState(state, trans);
  return { text: some === all ? label : trans.__('%1 of %2 %3', some, all, label), sign };
}
