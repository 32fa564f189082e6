/** Carries out remedies from a run's output, where the kernel cannot help: it is busy with the cell that hangs. */

import { CodeCell } from '@jupyterlab/cells';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { Kernel } from '@jupyterlab/services';
import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { RequestError } from '../api';
import { labelOf, stepOf } from '../remedy';
import { IRemedy, IRunJson } from '../generated/server';
import { IClusters } from '../tokens';

/**
 * Interrupts or continues through the server, runs code `beside` the run, or inserts a cell below. Returns what to say;
 * rejects with the reason if it fails.
 */
export function remedyTaker(
  clusters: IClusters,
  notebooks: INotebookTracker,
  beside: (run: IRunJson, ranks: string) => Promise<string>,
  trans: TranslationBundle
) {
  return async (run: IRunJson, from: Widget, remedy: IRemedy): Promise<string> => {
    const step = stepOf(remedy, run.state !== 'done');
    const panel = notebooks.find(each => each.node.contains(from.node));
    const cell = panel?.content.widgets.find(each => each.node.contains(from.node));
    if ('cell' in step) {
      if (!insertBelow(panel, from, step.cell)) {
        throw new Error(trans.__('this output is not in a notebook: type %1 in one', labelOf(remedy)));
      }
      return trans.__('inserted in the cell below');
    }
    if ('beside' in step) {
      return beside(run, step.beside);
    }
    if ('resume' in step) {
      await clusters.api.resume(run.cluster, 'continue', step.resume, run.cluster_id);
      return trans.__('done: the ranks go on');
    }
    const isOwn = cell instanceof CodeCell && cell.model.executionState === 'running';
    const kernel = isOwn && !step.interrupt ? panel?.sessionContext.session?.kernel : undefined;
    await interrupt(() => clusters.api.interrupt(run.cluster, step.interrupt, step.run ? run : undefined), kernel);
    return trans.__('done: all variables are kept');
  };
}

/** Interrupts through the server. The kernel, if one is given, knows the cluster even if the server does not. */
async function interrupt(ask: () => Promise<unknown>, kernel?: Kernel.IKernelConnection | null): Promise<void> {
  try {
    await ask();
  } catch (error) {
    const isUnknown = error instanceof RequestError && (error.status === 404 || error.status === 0);
    if (!isUnknown || !kernel) {
      throw error;
    }
    await kernel.interrupt();
  }
}

/** Whether the output was found in the notebook, and the cell was inserted. */
function insertBelow(panel: NotebookPanel | undefined, from: Widget, code: string): boolean {
  const at = panel?.content.widgets.findIndex(cell => cell.node.contains(from.node)) ?? -1;
  if (!panel || at < 0) {
    return false;
  }
  panel.content.activeCellIndex = at;
  NotebookActions.insertBelow(panel.content);
  panel.content.activeCell?.model.sharedModel.setSource(code);
  return true;
}
