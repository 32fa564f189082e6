/** Which ranks the cells of a notebook run on: the command that changes it, and what it says of a cell. */

import { InputDialog } from '@jupyterlab/apputils';
import { Cell } from '@jupyterlab/cells';
import { INotebookTracker } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { describeChoice } from './choices';
import { choiceOf, IChoice, otherMagic, replacement, withChoice, withoutLine } from './distline';

/** Arguments of the command. `choice`: `here` for the notebook only, `some` to ask for the ranks; else an IChoice. */
export interface IRanksArgs {
  choice: 'here' | 'some' | IChoice;
  label: string;
}

/** Why the ranks of a cell cannot be chosen; empty if they can. */
export function reasonAgainst(cell: Cell | null | undefined, trans: TranslationBundle): string {
  if (cell?.model.type !== 'code') {
    return trans.__('Only code cells run on ranks');
  }
  const magic = otherMagic(cell.model.sharedModel.getSource());
  if (magic) {
    return trans.__('This cell begins with %1, which runs in the notebook', magic);
  }
  return cell.model.getMetadata('editable') === false ? trans.__('This cell is read-only') : '';
}

/** The ranks of a cell in words. */
export function describeRanks(cell: Cell, isAuto: boolean, trans: TranslationBundle): string {
  const choice = choiceOf(sourceOf(cell), isAuto);
  return choice ? describeChoice(choice, trans) : trans.__('this notebook');
}

/** The command that changes the active cell of the open notebook; `isAuto`: whether its plain cells run on the ranks. */
export function ranksCommand(
  notebooks: INotebookTracker,
  isAuto: () => boolean,
  trans: TranslationBundle
): CommandRegistry.ICommandOptions {
  const isPossible = (choice: unknown): boolean => choice !== 'here' || !isAuto();
  return {
    label: args => (typeof args.label === 'string' ? args.label : trans.__('Choose the ranks of this cell…')),
    caption: () => reasonAgainst(notebooks.activeCell, trans),
    isEnabled: ({ choice }) =>
      !!notebooks.activeCell && !reasonAgainst(notebooks.activeCell, trans) && isPossible(choice),
    isToggleable: true,
    isToggled: args => isChosen(notebooks.activeCell, isAuto(), args),
    execute: args => choose(notebooks.activeCell, args, trans)
  };
}

async function choose(cell: Cell | null, args: ReadonlyPartialJSONObject, trans: TranslationBundle): Promise<void> {
  const choice = (args.choice ?? 'some') as IRanksArgs['choice'];
  if (!cell || reasonAgainst(cell, trans)) {
    return;
  }
  if (choice === 'here') {
    write(cell, withoutLine(sourceOf(cell)));
  } else if (choice !== 'some') {
    write(cell, withChoice(sourceOf(cell), choice));
  } else {
    const { value } = await InputDialog.getText({
      title: trans.__('Ranks of this cell'),
      label: trans.__('For example 0-3,7 or node=1, or !2 for all but rank 2:'),
      text: choiceOf(sourceOf(cell))?.ranks ?? '',
      okLabel: trans.__('Choose')
    });
    if (value?.trim() && !cell.isDisposed) {
      write(cell, withChoice(sourceOf(cell), { ranks: value.trim() }));
    }
  }
}

/** Changes only what differs, so that the cursor and the marks of the rest stay. */
function write(cell: Cell, text: string): void {
  const before = sourceOf(cell);
  const { start, end, inserted } = replacement(before, text);
  cell.model.sharedModel.updateSource(start, end, inserted);
  if (!before.trim() && cell.editor) {
    cell.editor.setCursorPosition(cell.editor.getPositionAt(text.length) ?? { line: 0, column: 0 });
    cell.editor.focus();
  }
}

function isChosen(cell: Cell | null, isAuto: boolean, args: ReadonlyPartialJSONObject): boolean {
  const chosen = cell?.model.type === 'code' ? choiceOf(sourceOf(cell), isAuto) : null;
  const offered = args.choice as IRanksArgs['choice'] | undefined;
  if (!cell || offered === undefined || offered === 'some') {
    return false;
  }
  if (offered === 'here' || !chosen) {
    return offered === 'here' && !chosen;
  }
  return offered.group === chosen.group && offered.ranks === chosen.ranks;
}

function sourceOf(cell: Cell): string {
  return cell.model.sharedModel.getSource();
}
