/** Marks the lines of notebook cells at which ranks are paused. */

import { CodeCell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';

import { keyOf, linesByRun } from '../paused';
import { IClusters } from '../tokens';
import { markPaused } from './pausedlines';
import { isCode, runOf } from './progress';

/** Keeps the marks of all cells of a notebook as the clusters report them. */
export function markPausedLines(panel: NotebookPanel, clusters: IClusters): void {
  const marked = new WeakSet<CodeCell>();
  const update = (): void => {
    if (panel.isDisposed) {
      clusters.changed.disconnect(update);
      return;
    }
    const paused = linesByRun(clusters.all);
    if (!paused.size && !panel.content.widgets.some(cell => isCode(cell) && marked.has(cell))) {
      return;
    }
    for (const cell of panel.content.widgets.filter(isCode)) {
      const run = runOf(cell.outputArea.model);
      const lines = run && paused.get(keyOf(run.cluster_id || run.cluster, run.run));
      if (lines) {
        markPaused(cell.editor, lines);
        marked.add(cell);
      } else if (marked.delete(cell)) {
        markPaused(cell.editor, new Map());
      }
    }
  };
  clusters.changed.connect(update);
  panel.content.modelContentChanged.connect(update); // the output that says which run a cell is comes later
  panel.disposed.connect(() => clusters.changed.disconnect(update));
  update();
}
