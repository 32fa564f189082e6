/** The plugin that shows the progress of a run beside the prompt of its cell. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CellProgress, isCode } from './progress';

export const cellProgress: JupyterFrontEndPlugin<void> = {
  id: 'jdist:cell-progress',
  description: 'How many ranks a cell runs on, and how many are done.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ITranslator],
  activate: (_: JupyterFrontEnd, notebooks: INotebookTracker, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('jdist');
    const known = new WeakSet<object>();
    const mark = (panel: NotebookPanel): void => {
      for (const cell of panel.content.widgets) {
        if (isCode(cell) && !known.has(cell)) {
          known.add(cell);
          new CellProgress(cell, trans); // disposed with the cell
        }
      }
    };
    notebooks.widgetAdded.connect((_, panel) => {
      const update = (): void => mark(panel);
      panel.content.modelContentChanged.connect(update);
      void panel.context.ready.then(update);
    });
  }
};
