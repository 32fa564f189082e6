/** The button that shows on which ranks the active cell runs, with a menu that changes it. */

import { Cell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { MenuSvg } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Menu } from '@lumino/widgets';

import { CommandIDs, IClusters } from '../tokens';
import { AttachedCluster, findAttached } from './attached';
import { describeRanks, IRanksArgs, reasonAgainst } from './cellranks';
import { groupOffers, IOffer, meshOffers } from './choices';
import { isForRanks } from './distline';
import { MenuButton } from './menubutton';

/** It is shown while the notebook uses a cluster or has a cell for ranks. */
export function createRanksButton(
  panel: NotebookPanel,
  attached: AttachedCluster,
  clusters: IClusters,
  commands: CommandRegistry,
  trans: TranslationBundle
): MenuButton {
  const { content } = panel;
  const cluster = () => findAttached(attached, clusters);
  const button = new MenuButton(commands, menu =>
    fill(menu, groupOffers(cluster(), trans), meshOffers(cluster(), trans), trans)
  );
  let watched: Cell['model'] | null = null;
  const update = (): void => {
    const cell = content.activeCell;
    const reason = reasonAgainst(cell, trans);
    const text = cell && !reason ? describeRanks(cell, attached.isAuto, trans) : '—';
    button.present({ text, about: reason || trans.__('This cell runs on: %1', text), isDisabled: !!reason });
    button.setHidden(!attached.name && !content.widgets.some(each => isForRanks(each.model.sharedModel.getSource())));
  };
  const watch = (): void => {
    watched?.contentChanged.disconnect(update);
    watched = content.activeCell?.model ?? null;
    watched?.contentChanged.connect(update);
    update();
  };
  content.activeCellChanged.connect(watch);
  content.modelContentChanged.connect(update);
  attached.changed.connect(update);
  button.disposed.connect(() => {
    watched?.contentChanged.disconnect(update);
    content.activeCellChanged.disconnect(watch);
    content.modelContentChanged.disconnect(update);
    attached.changed.disconnect(update);
  });
  watch();
  return button;
}

function fill(menu: Menu, groups: IOffer[], mesh: IOffer[], trans: TranslationBundle): void {
  const add = (to: Menu, choice: IRanksArgs['choice'], label: string): void => {
    to.addItem({
      command: CommandIDs.chooseRanks,
      args: { choice: typeof choice === 'string' ? choice : { ...choice }, label }
    });
  };
  const submenu = (offers: IOffer[], label: string): void => {
    if (offers.length) {
      const below = new MenuSvg({ commands: menu.commands });
      below.title.label = label;
      offers.forEach(each => add(below, each.choice, each.label));
      menu.addItem({ type: 'submenu', submenu: below });
    }
  };
  add(menu, {}, trans.__('All ranks'));
  menu.addItem({ command: CommandIDs.chooseRanks, args: { choice: 'some', label: trans.__('Some ranks…') } });
  submenu(groups, trans.__('Group'));
  submenu(mesh, trans.__('Node or part of the mesh'));
  menu.addItem({ type: 'separator' });
  menu.addItem({ command: CommandIDs.chooseRanks, args: { choice: 'here', label: trans.__('This notebook only') } });
}
