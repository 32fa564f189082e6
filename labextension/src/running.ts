/** Clusters among what runs: Lab's Running panel lists them, shows them and shuts them down. */

import { IRunningSessionManagers, IRunningSessions } from '@jupyterlab/running';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';

import { ranksIcon } from './icons';
import { CommandIDs, IClusters } from './tokens';
import * as words from './words';

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
        labelTitle: () => words.line(each, trans),
        detail: () => words.line(each, trans),
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
    // asked for in Lab's own dialog already
    shutdownAll: () =>
      clusters.all.filter(each => each.state !== 'foreign').forEach(each => void clusters.api.stop(each.name)),
    shutdownLabel: trans.__('Stop'),
    shutdownAllLabel: trans.__('Stop all'),
    shutdownAllConfirmationText: trans.__('Stop all clusters? Their ranks end, and their variables are lost.')
  });
}
