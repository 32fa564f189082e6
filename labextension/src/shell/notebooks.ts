/** Puts code into the open notebook. */

import { Cell } from '@jupyterlab/cells';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';

import { isForRanks } from '../toolbar/distline';

/**
 * Puts code into a new cell below the active one, or into the active one if that is empty, and runs it if `isRun`.
 * Once that has succeeded, `next` is put into a cell below and not run, unless the notebook has a cell for ranks already.
 *
 * Returns the notebook; null if none is open.
 */
export async function insertCell(
  tracker: INotebookTracker | null,
  code: string,
  isRun: boolean,
  next = ''
): Promise<NotebookPanel | null> {
  const panel = tracker?.currentWidget ?? null;
  if (!panel || panel.content.model?.readOnly) {
    return null;
  }
  await panel.context.ready;
  const { content } = panel;
  const active = content.activeCell?.model;
  if (active?.type !== 'code' || active.sharedModel.getSource().trim()) {
    NotebookActions.insertBelow(content);
  }
  const cell = content.activeCell;
  cell?.model.sharedModel.setSource(code);
  if (cell) {
    await content.scrollToItem(content.activeCellIndex);
  }
  if (isRun && cell) {
    await runCell(panel, cell, next);
  }
  return panel;
}

/** Runs the active cell; if that succeeds, puts `next` below it. */
async function runCell(panel: NotebookPanel, cell: Cell, next: string): Promise<void> {
  const { content, sessionContext } = panel;
  await sessionContext.ready;
  if (!(await NotebookActions.run(content, sessionContext)) || panel.isDisposed || !next) {
    return;
  }
  const at = content.widgets.indexOf(cell);
  if (at < 0 || content.widgets.some(each => isForRanks(each.model.sharedModel.getSource()))) {
    return;
  }
  const isActive = content.activeCellIndex === at;
  content.model?.sharedModel.insertCell(at + 1, { cell_type: 'code', source: next });
  if (isActive) {
    content.activeCellIndex = at + 1; // the user has not gone elsewhere meanwhile
  }
}
