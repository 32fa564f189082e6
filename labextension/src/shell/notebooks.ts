/** Puts code into the open notebook. */

import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';

/**
 * Puts code into a new cell below the active one, or into the active one if that is empty, and runs it if `isRun`.
 *
 * Returns the notebook; null if none is open.
 */
export async function insertCell(
  tracker: INotebookTracker | null,
  code: string,
  isRun: boolean
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
  if (isRun) {
    await panel.sessionContext.ready;
    await NotebookActions.run(content, panel.sessionContext);
  }
  return panel;
}
