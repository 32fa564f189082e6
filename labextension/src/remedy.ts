/** Remedies: the actions that a verdict suggests, worded. */

import { IRemedy } from './generated/server';

/**
 * How a click on a remedy is carried out: a run or ranks ("" for all) are interrupted, paused ranks go on, a cell is made,
 * or code of the user's is run on these ranks at once.
 */
export type Step = { interrupt: string; run?: number } | { resume: string } | { cell: string } | { beside: string };

/**
 * An interrupt keeps every variable, so one click is enough. Everything else is inserted as a cell, which the user reads
 * and runs: an output may come from elsewhere. While a run is active (`isActive`), a cell would wait in the notebook for its
 * end, so what the run needs to go on is done at once.
 */
export function stepOf(remedy: IRemedy, isActive = false): Step {
  if (remedy.action === 'interrupt') {
    return { interrupt: remedy.ranks ?? '', ...(remedy.run ? { run: remedy.run } : {}) };
  }
  if (isActive && remedy.action === 'continue') {
    return { resume: remedy.ranks ?? '' };
  }
  return isActive && remedy.action === 'run_cell' ? { beside: remedy.ranks ?? '' } : { cell: `${labelOf(remedy)}\n` };
}

/** What a user would type in a cell. */
export function labelOf({ action, ranks, name, run }: IRemedy): string {
  const words = action === 'run_cell' ? '%%dist' : `%dist ${action}` + (name ? ` ${name}` : '');
  return (words + (ranks ? ` -r ${ranks}` : '') + (run ? ` --run ${run}` : '')).replace(/\s+/g, ' '); // one line, wherever it comes from
}

export function effectOf(remedy: IRemedy): string {
  return remedy.effect;
}
