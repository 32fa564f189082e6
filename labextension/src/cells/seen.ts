/** Runs whose output the user has in front of them. */

import { INotebookTracker } from '@jupyterlab/notebook';

import { IRunJson } from '../generated/server';
import { isCode, runOf } from './progress';

/** The runs whose cells are in view in the notebook in front. */
export function seenRuns(notebooks: INotebookTracker | null): IRunJson[] {
  const panel = notebooks?.currentWidget;
  if (!panel?.isVisible || document.hidden) {
    return [];
  }
  const view = panel.content.node.getBoundingClientRect();
  return panel.content.widgets.flatMap(cell => {
    const run = isCode(cell) ? runOf(cell.outputArea.model) : undefined;
    const { top, bottom } = cell.node.getBoundingClientRect();
    return run && cell.node.isConnected && top < view.bottom && bottom > view.top ? [run] : [];
  });
}
