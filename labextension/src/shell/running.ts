/** The clusters in JupyterLab's panel of running sessions, which lists them, opens them and shuts them down. */

import { IRunningSessionManagers, IRunningSessions } from '@jupyterlab/running';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';

import { clusterLine } from '../states';
import { CommandIDs, IClusters } from '../tokens';
import { ranksIcon } from './icons';

export function addRunning(
  managers: IRunningSessionManagers,
  clusters: IClusters,
  commands: CommandRegistry,
  trans: TranslationBundle
): void {
  const changed = new Signal<object, void>({});
  let shown = '';
  clusters.changed.connect(() => {
    const now = JSON.stringify(items().map(each => [each.label(), each.detail?.()]));
    if (now !== shown) {
      shown = now;
      changed.emit();
    }
  });
  const items = (): IRunningSessions.IRunningItem[] =>
    clusters.all
      .filter(each => each.state !== 'foreign')
      .map(each => ({
        icon: () => ranksIcon,
        label: () => each.name,
        labelTitle: () => clusterLine(each, trans),
        detail: () => clusterLine(each, trans),
        open: () => {
          void commands.execute(CommandIDs.choose, { cluster: each.name });
          void commands.execute(CommandIDs.openPanel);
        },
        shutdown: () => void commands.execute(CommandIDs.stop, { cluster: each.name })
      }));
  managers.add({
    name: trans.__('Clusters'),
    running: items,
    runningChanged: changed,
    refreshRunning: () => void clusters.refresh(),
    // JupyterLab has asked for confirmation.
    shutdownAll: () =>
      clusters.all.filter(each => each.state !== 'foreign').forEach(each => void clusters.api.stop(each.name)),
    shutdownLabel: trans.__('Stop'),
    shutdownAllLabel: trans.__('Stop all'),
    shutdownAllConfirmationText: trans.__('Stop all clusters? Their ranks end, and their variables are lost.')
  });
}
