/** The plugin of the panel, the status bar and the commands. */

import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IEditorServices } from '@jupyterlab/codeeditor';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { IStateDB } from '@jupyterlab/statedb';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { Actions } from '../actions';
import { AddNodeDialogs } from '../addnode/dialog';
import { seenRuns } from '../cells/seen';
import { addCommands } from '../shell/commands';
import { showNotices } from '../shell/notices';
import { addRunning } from '../shell/running';
import { StatusItem } from '../shell/status';
import { notePauses } from '../shell/steps';
import { Tabs } from '../shell/tabs';
import { Terminals } from '../shell/terminals';
import { StartDialogs } from '../start/dialog';
import { IClusters, IPreferences } from '../tokens';
import { followNotebooks } from './following';
import { RanksPanel } from './panel';
import { persistState } from './persistedstate';
import { ResourceView } from './resources/view';
import { Selection } from './selection';

/** Requires only what every front end provides; Notebook 7 lacks some of the optional services. */
export const panel: JupyterFrontEndPlugin<void> = {
  id: 'jdist:plugin',
  description: 'The panel of clusters and ranks, its commands, and the status bar.',
  autoStart: true,
  requires: [IClusters, IPreferences],
  optional: [
    ITranslator,
    INotebookTracker,
    ICommandPalette,
    ILayoutRestorer,
    IStateDB,
    IStatusBar,
    IRunningSessionManagers,
    ILabShell,
    IEditorServices
  ],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    preferences: IPreferences,
    translator: ITranslator | null,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    state: IStateDB | null,
    statusBar: IStatusBar | null,
    running: IRunningSessionManagers | null,
    lab: ILabShell | null,
    editors: IEditorServices | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jdist');
    const { commands } = app;
    const selection = new Selection(clusters);
    const actions = new Actions(clusters, selection, notebooks, new Terminals(app), trans);
    const open = (): void => {
      app.shell.activateById('jdist-panel');
    };
    const dialogs = new StartDialogs({ clusters, commands, state, trans });
    const adding = new AddNodeDialogs(clusters, trans);
    addCommands({
      app,
      actions,
      tabs: new Tabs(app.shell, lab),
      trans,
      palette,
      restorer,
      editors,
      open,
      openResources: () => {
        side.showResources();
        open();
      },
      start: () => dialogs.open(),
      addNode: name => adding.open(name),
      notebooks
    });
    if (notebooks) {
      followNotebooks(notebooks, clusters);
    }
    notePauses(clusters);
    clusters.changed.connect(() => commands.notifyCommandChanged());
    selection.changed.connect(() => commands.notifyCommandChanged());
    const resources = new ResourceView();
    void persistState(state, clusters, selection, resources);

    const side = new RanksPanel({ clusters, selection, commands, trans, preferences }, resources);
    app.shell.add(side, 'left', { rank: 350 });
    restorer?.add(side, side.id);

    const status = new StatusItem(clusters, open, trans);
    const activeStateChanged = new Signal<object, void>({});
    statusBar?.registerStatusItem('jdist:status', {
      item: status,
      align: 'left',
      rank: 20,
      isActive: () => preferences.values.showStatus && clusters.current !== undefined,
      activeStateChanged
    });
    clusters.changed.connect(() => activeStateChanged.emit());
    preferences.changed.connect(() => activeStateChanged.emit());
    if (running) {
      addRunning(running, clusters, commands, trans);
    }
    const show = (cluster: string): void => {
      void clusters.choose(cluster);
      open();
    };
    showNotices({ clusters, trans, preferences, show, seenRuns: () => seenRuns(notebooks) });
  }
};
