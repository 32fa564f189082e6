/** Suggested actions, as the server and the mime bundle send them. Nothing else reads their fields. */

/** What a user would type, and what it does. */
export interface IRemedy {
  command: string;
  effect: string;
}

/** How a click on a remedy is carried out: these ranks are interrupted ("" for all), or a cell is made. */
export type Step = { interrupt: string } | { cell: string };

const INTERRUPT = /^%dist\s+interrupt(?:\s+(?:-r|--ranks)[\s=]*(\S+))?\s*$/;

/**
 * An interrupt keeps all variables and is carried out at once. Everything else becomes a cell, to be read and run by the
 * user: an output may come from somewhere else, so a click on it must not do more.
 */
export function stepOf(remedy: IRemedy): Step {
  const found = INTERRUPT.exec(remedy.command);
  return found ? { interrupt: found[1] ?? '' } : { cell: `${remedy.command}\n` };
}

/** The text of the button. */
export function labelOf(remedy: IRemedy): string {
  return remedy.command;
}

export function effectOf(remedy: IRemedy): string {
  return remedy.effect;
}
