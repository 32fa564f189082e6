/** The button that shows which cluster a notebook uses, with a menu to start, attach and open. */

import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { IDisposable } from '@lumino/disposable';
import { Menu } from '@lumino/widgets';

import { joinParts } from '../format';
import { ranksIcon } from '../shell/icons';
import { clusterLine, clusterState, hostOf, needsLogin } from '../states';
import { CommandIDs, IClusters } from '../tokens';
import { AttachedCluster, findAttached, ITold } from './attached';
import { IShown, MenuButton } from './menubutton';

export function createClusterButton(
  attached: AttachedCluster,
  clusters: IClusters,
  commands: CommandRegistry,
  trans: TranslationBundle
): MenuButton {
  const button = new MenuButton(commands, menu => fill(menu, attached, clusters), ranksIcon);
  const update = (): void => button.present(describe(attached, clusters, trans));
  let [seen, look]: [string, IDisposable | null] = ['', null];
  const follow = (): void => {
    if (attached.name !== seen) {
      look?.dispose();
      seen = attached.name;
      look = hostOf(seen) ? clusters.look(seen) : null;
    }
    update();
  };
  // A time that is counted.
  const clock = window.setInterval(() => {
    if (findAttached(attached, clusters)?.state === 'reconnecting') {
      update();
    }
  }, 1000);
  attached.changed.connect(follow);
  clusters.changed.connect(update);
  button.disposed.connect(() => {
    window.clearInterval(clock);
    look?.dispose();
    attached.changed.disconnect(follow);
    clusters.changed.disconnect(update);
  });
  follow();
  return button;
}

/** What is shown of the notebook's cluster. */
function describe(told: ITold, clusters: IClusters, trans: TranslationBundle): IShown {
  const { name } = told;
  const cluster = findAttached(told, clusters);
  if (!name) {
    return {
      text: trans.__('No cluster'),
      about: trans.__('This notebook does not use a cluster for distributed PyTorch')
    };
  }
  if (!cluster && hostOf(name)) {
    // the kernel uses it through a login of its own, and the server has none yet, or does not find it
    const about = trans.__('This notebook uses cluster %1 on another host, of which this server knows nothing', name);
    return { text: name, about };
  }
  if (!cluster) {
    const about = trans.__('This notebook uses cluster %1, which has ended or is not known to this server', name);
    return { sign: '✕', tone: 'bad', text: joinParts(name, trans.__('not found')), about };
  }
  const { sign, tone, label } = clusterState(cluster, trans, Date.now());
  const ranks = cluster.world_size ? trans._n('%1 rank', '%1 ranks', cluster.world_size) : '';
  const about = trans.__('This notebook uses cluster %1: %2', name, clusterLine(cluster, trans));
  return { sign, tone, text: joinParts(name, ranks, label), about };
}

function fill(menu: Menu, told: ITold, clusters: IClusters): void {
  const { name } = told;
  const cluster = findAttached(told, clusters);
  menu.addItem({ command: CommandIDs.openPanel, args: cluster ? { cluster: name } : {} });
  if (cluster && needsLogin(cluster)) {
    menu.addItem({ command: CommandIDs.logIn, args: { cluster: name } });
  }
  if (cluster) {
    menu.addItem({ command: CommandIDs.interrupt, args: { cluster: name, ranks: 'all' } });
  }
  menu.addItem({ type: 'separator' });
  for (const each of clusters.all.filter(each => each.state === 'ready' && each !== cluster)) {
    menu.addItem({ command: CommandIDs.attach, args: { cluster: each.name } });
  }
  menu.addItem({ command: CommandIDs.start });
  if (cluster) {
    menu.addItem({ command: CommandIDs.stop, args: { cluster: name } });
  }
}
