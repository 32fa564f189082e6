/** The plugin of the notebook's toolbar: the cluster that the notebook uses, and the ranks of its active cell. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { paletteCategory } from '../shell/names';
import { CommandIDs, IClusters } from '../tokens';
import { attachedOf } from './attached';
import { ranksCommand } from './cellranks';
import { createClusterButton } from './clusterbutton';
import { createRanksButton } from './ranksbutton';

/** The factory of notebooks, which the toolbar belongs to, and the items of schema/plugin.json. */
const NOTEBOOK = 'Notebook';
const CLUSTER = 'jdist-cluster';
const RANKS = 'jdist-ranks';

export const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'jdist:toolbar',
  description: 'The cluster that a notebook uses and the ranks of its active cell, in its toolbar.',
  autoStart: true,
  requires: [IClusters, INotebookTracker],
  optional: [IToolbarWidgetRegistry, ICommandPalette, ITranslator],
  activate: (
    { commands }: JupyterFrontEnd,
    clusters: IClusters,
    notebooks: INotebookTracker,
    toolbars: IToolbarWidgetRegistry | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jdist');
    const isAuto = (): boolean => !!notebooks.currentWidget && attachedOf(notebooks.currentWidget).isAuto;
    commands.addCommand(CommandIDs.chooseRanks, ranksCommand(notebooks, isAuto, trans));
    palette?.addItem({ command: CommandIDs.chooseRanks, category: paletteCategory(trans) });
    notebooks.activeCellChanged.connect(() => commands.notifyCommandChanged(CommandIDs.chooseRanks));
    toolbars?.addFactory<NotebookPanel>(NOTEBOOK, CLUSTER, panel =>
      createClusterButton(attachedOf(panel), clusters, commands, trans)
    );
    toolbars?.addFactory<NotebookPanel>(NOTEBOOK, RANKS, panel =>
      createRanksButton(panel, attachedOf(panel), clusters, commands, trans)
    );
  }
};
