/** Remedies: the actions that a verdict suggests, as the server and a run's output send them; worded here. */

/** `ranks` as a user writes them, such as 0-3; without them all. `name` is what it is about, such as a variable. */
export interface IRemedy {
  action: string;
  effect: string;
  ranks?: string;
  name?: string;
}

/** How a click on a remedy is carried out: these ranks are interrupted ("" for all), or a cell is made. */
export type Step = { interrupt: string } | { cell: string };

/**
 * An interrupt keeps every variable, so one click is enough. Everything else is inserted as a cell, which the user reads
 * and runs: an output may come from elsewhere.
 */
export function stepOf(remedy: IRemedy): Step {
  return remedy.action === 'interrupt' ? { interrupt: remedy.ranks ?? '' } : { cell: `${labelOf(remedy)}\n` };
}

/** What a user would type in a cell. */
export function labelOf({ action, ranks, name }: IRemedy): string {
  const words = action === 'run_cell' ? '%%dist' : `%dist ${action}` + (name ? ` ${name}` : '');
  return (words + (ranks ? ` -r ${ranks}` : '')).replace(/\s+/g, ' '); // one line, wherever it comes from
}

export function effectOf(remedy: IRemedy): string {
  return remedy.effect;
}
