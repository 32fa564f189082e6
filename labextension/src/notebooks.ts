/** The notebook that is open, and code put into it. */

import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';

/**
 * Puts code into a cell below the active one, or into the active one if that is empty; runs it if `isRun`.
 *
 * The notebook that has it now; null if none is open.
 */
export async function insert(
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
