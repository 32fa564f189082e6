/** The marks of cells that run on ranks: a line beside the cell, and which ranks it chooses. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CodeCell } from '@jupyterlab/cells';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';

import { AttachedCluster, attachedOf } from '../toolbar/attached';
import { describeChoice } from '../toolbar/choices';
import { choiceOf } from '../toolbar/distline';
import { isCode } from './progress';

const FOR_RANKS = 'jdist-mod-forRanks';

export const rankMarks: JupyterFrontEndPlugin<void> = {
  id: 'jdist:rank-marks',
  description: 'Marks the cells that run on ranks, and shows on which.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ITranslator],
  activate: (_: JupyterFrontEnd, notebooks: INotebookTracker, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('jdist');
    const known = new WeakSet<CodeCell>();
    notebooks.widgetAdded.connect((_, panel) => {
      const update = (): void => {
        for (const cell of panel.content.widgets) {
          if (isCode(cell) && !known.has(cell)) {
            known.add(cell);
            keepMarked(cell, attachedOf(panel), trans);
          }
        }
      };
      panel.content.modelContentChanged.connect(update);
      void panel.context.ready.then(update);
    });
  }
};

/** Marks the cell as its text is, now and whenever it changes. */
function keepMarked(cell: CodeCell, attached: AttachedCluster, trans: TranslationBundle): void {
  const mark = document.createElement('div');
  mark.className = 'jdist-RankMark';
  mark.setAttribute('role', 'img');
  const update = (): void => {
    if (cell.isDisposed) {
      return;
    }
    const choice = choiceOf(cell.model.sharedModel.getSource(), attached.isAuto);
    cell.toggleClass(FOR_RANKS, choice !== null);
    if (!choice) {
      mark.remove();
      return;
    }
    const ranks = describeChoice(choice, trans);
    if (mark.textContent !== ranks) {
      mark.textContent = ranks;
      mark.title = trans.__('This cell runs on: %1', ranks);
      mark.setAttribute('aria-label', mark.title);
    }
    const holder = cell.inputArea?.node;
    if (holder && mark.parentElement !== holder) {
      holder.append(mark);
    }
  };
  cell.model.contentChanged.connect(update);
  attached.changed.connect(update);
  cell.disposed.connect(() => {
    attached.changed.disconnect(update);
    mark.remove(); // the signals of the model end with it
  });
  void cell.ready.then(update); // a cell out of view gets its input later
  update();
}
