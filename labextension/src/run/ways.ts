/** Ways out of a hang, gone for the user: through the server while the kernel is busy with the very cell that hangs. */

import { NotebookActions, NotebookPanel, INotebookTracker } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { RequestError } from '../api';
import { IClusters } from '../tokens';
import { interrupted } from '../words';
import { IRun } from './model';

/**
 * An interrupt, which keeps every name, is asked of the server. All else becomes a cell below, to be looked at and run:
 * what stands in an output, which may come from elsewhere, is not done at a click.
 */
export function waysOut(clusters: IClusters, notebooks: INotebookTracker, trans: TranslationBundle) {
  return async (run: IRun, from: Widget, command: string): Promise<string> => {
    const ranks = interrupted(command);
    if (ranks === undefined) {
      return insertBelow(notebooks, from, command, trans);
    }
    try {
      await clusters.api.interrupt(run.cluster, ranks);
    } catch (error) {
      const kernel = notebookOf(notebooks, from)?.sessionContext.session?.kernel;
      const isUnknown = error instanceof RequestError && (error.status === 404 || error.status === 0);
      if (ranks || !isUnknown || !kernel) {
        throw error;
      }
      await kernel.interrupt(); // the kernel knows the cluster, even if this server does not
    }
    return trans.__('done: every namespace is kept');
  };
}

/** The notebook that holds the widget. */
export function notebookOf(notebooks: INotebookTracker, from: Widget): NotebookPanel | undefined {
  return notebooks.find(panel => panel.node.contains(from.node));
}

function insertBelow(notebooks: INotebookTracker, from: Widget, command: string, trans: TranslationBundle): string {
  const panel = notebookOf(notebooks, from);
  const at = panel?.content.widgets.findIndex(cell => cell.node.contains(from.node)) ?? -1;
  if (!panel || at < 0) {
    throw new Error(trans.__('this output is in no notebook: type %1 in one', command));
  }
  panel.content.activeCellIndex = at;
  NotebookActions.insertBelow(panel.content);
  panel.content.activeCell?.model.sharedModel.setSource(`${command}\n`);
  return trans.__('it begins the cell below');
}
