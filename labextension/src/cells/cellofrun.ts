/** The cell whose run it is, by what the cell's output says of it. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import { IRunId } from '../api';
import { IRunJson } from '../generated/server';
import { isOfRun, MIME } from '../run/model';
import { isCode } from './progress';

/** A cell of an open notebook. */
export interface IFoundCell {
  panel: NotebookPanel;
  index: number;
}

/** A cell that shows a run again, which belongs to another one. */
const SHOWS_AGAIN = /^\s*%dist\s+output\b/m;

/** The cell of a run, in the notebook in front if several have it; undefined if no open notebook does. */
export function cellOfRun(notebooks: INotebookTracker | null, run: IRunId): IFoundCell | undefined {
  const panels: NotebookPanel[] = [];
  notebooks?.forEach(panel => panels.push(panel));
  const current = notebooks?.currentWidget;
  panels.sort((a, b) => Number(b === current) - Number(a === current));
  const found = panels.filter(panel => panel.context.isReady).flatMap(panel => cellsOfRun(panel, run));
  return found.find(each => !SHOWS_AGAIN.test(sourceOf(each))) ?? found[0];
}

function cellsOfRun(panel: NotebookPanel, run: IRunId): IFoundCell[] {
  return panel.content.widgets.flatMap((cell, index) => {
    const outputs = isCode(cell) ? cell.model.outputs : undefined;
    const all = Array.from({ length: outputs?.length ?? 0 }, (_, i) => outputs?.get(i).data[MIME]);
    return all.some(each => isOfRun(each as unknown as IRunJson | undefined, run)) ? [{ panel, index }] : [];
  });
}

function sourceOf({ panel, index }: IFoundCell): string {
  return panel.content.widgets[index].model.sharedModel.getSource();
}

/** Brings the notebook to the front, selects the cell and scrolls to it. */
export async function showCell(shell: JupyterFrontEnd.IShell, { panel, index }: IFoundCell): Promise<void> {
  shell.activateById(panel.id);
  await panel.revealed;
  const { content } = panel;
  content.deselectAll();
  content.activeCellIndex = index;
  content.mode = 'command';
  await content.scrollToItem(index, 'smart');
  content.activate();
}
