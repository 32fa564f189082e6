/** The plugin of the panel, the status bar and the commands. */

import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { Acting } from '../acting';
import { addCommands } from '../commands';
import { tellNotices } from '../notices';
import { addRunning } from '../running';
import { start } from '../start/dialog';
import { Status } from '../status';
import { Tabs } from '../tabs';
import { Terminals } from '../terminals';
import { IClusters } from '../tokens';
import { Choice } from './choice';
import { keep } from './kept';
import { RanksPanel } from './panel';

const ID = 'jdist:plugin';

/** Only what every front end has is required; Notebook 7 lacks some of the rest. */
export const panel: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'The panel of clusters and ranks, its commands, and the status bar.',
  autoStart: true,
  requires: [IClusters],
  optional: [
    ITranslator,
    INotebookTracker,
    ICommandPalette,
    ILayoutRestorer,
    IStateDB,
    ISettingRegistry,
    IStatusBar,
    IRunningSessionManagers,
    ILabShell
  ],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    translator: ITranslator | null,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    state: IStateDB | null,
    settings: ISettingRegistry | null,
    statusBar: IStatusBar | null,
    running: IRunningSessionManagers | null,
    lab: ILabShell | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jdist');
    const { commands } = app;
    const choice = new Choice(clusters);
    const acting = new Acting(clusters, choice, notebooks, new Terminals(app), trans);
    const open = (): void => {
      app.shell.activateById('jdist-panel');
    };
    addCommands({
      app,
      acting,
      tabs: new Tabs(app.shell, lab),
      trans,
      palette,
      restorer,
      open,
      start: () => start({ clusters, commands, state, trans })
    });
    clusters.changed.connect(() => commands.notifyCommandChanged());
    choice.changed.connect(() => commands.notifyCommandChanged());
    void keep(state, clusters, choice);

    const side = new RanksPanel({ clusters, choice, commands, trans });
    app.shell.add(side, 'left', { rank: 350 });
    restorer?.add(side, side.id);

    const status = new Status(clusters, open, trans);
    const wanted = { showStatus: true, showNotices: true };
    const activeStateChanged = new Signal<object, void>({});
    statusBar?.registerStatusItem('jdist:status', {
      item: status,
      align: 'left',
      rank: 20,
      isActive: () => wanted.showStatus && clusters.current !== undefined,
      activeStateChanged
    });
    clusters.changed.connect(() => activeStateChanged.emit());
    if (running) {
      addRunning(running, clusters, commands, trans);
    }
    const show = (cluster: string): void => {
      void clusters.choose(cluster);
      open();
    };
    tellNotices({ clusters, trans, isWanted: () => wanted.showNotices, show });
    void settings?.load(ID).then(loaded => {
      const take = (): void => {
        wanted.showNotices = loaded.composite.showNotices !== false;
        wanted.showStatus = loaded.composite.showStatus !== false;
        activeStateChanged.emit();
      };
      loaded.changed.connect(take);
      take();
    });
  }
};
