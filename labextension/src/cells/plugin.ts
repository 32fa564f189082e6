/** The plugin that shows the state of a run in its cell: its progress beside the prompt, and where ranks are paused. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IClusters, IPreferences } from '../tokens';
import { markPausedLines } from './paused';
import { CellProgress, isCode } from './progress';

export const cellProgress: JupyterFrontEndPlugin<void> = {
  id: 'jdist:cell-progress',
  description: 'How many ranks a cell runs on, how many are done, and the lines at which ranks are paused.',
  autoStart: true,
  requires: [INotebookTracker, IClusters, IPreferences],
  optional: [ITranslator],
  activate: (
    _: JupyterFrontEnd,
    notebooks: INotebookTracker,
    clusters: IClusters,
    preferences: IPreferences,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jdist');
    const known = new WeakSet<object>();
    const mark = (panel: NotebookPanel): void => {
      for (const cell of panel.content.widgets) {
        if (isCode(cell) && !known.has(cell)) {
          known.add(cell);
          new CellProgress(cell, preferences, trans); // disposed with the cell
        }
      }
    };
    notebooks.widgetAdded.connect((_, panel) => {
      const update = (): void => mark(panel);
      panel.content.modelContentChanged.connect(update);
      void panel.context.ready.then(() => {
        update();
        markPausedLines(panel, clusters);
      });
    });
  }
};
