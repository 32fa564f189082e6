/** The context menus of ranks and of clusters. */

import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { ReadonlyJSONObject } from '@lumino/coreutils';
import { Menu } from '@lumino/widgets';

import { CommandIDs } from '../tokens';

/** Commands that resume paused ranks. */
export const STEPS = [
  CommandIDs.continue,
  CommandIDs.next,
  CommandIDs.step,
  CommandIDs.return,
  CommandIDs.nextCall
] as const;

/** Opens the menu at a point of the page; `args` are passed to its commands. */
export function openMenu(
  commands: CommandRegistry,
  args: ReadonlyJSONObject & { ranks: number[] },
  at: { x: number; y: number },
  trans: TranslationBundle
): void {
  const groups = [
    [CommandIDs.interrupt, CommandIDs.restart],
    [CommandIDs.pause, ...STEPS],
    [CommandIDs.logs, CommandIDs.stack, CommandIDs.console],
    [CommandIDs.goToCell, CommandIDs.insertCell]
  ];
  open(groups, { commands, args, at, title: trans.__('Ranks'), label: trans.__('Actions for the selected ranks') });
}

/** Opens the menu of a cluster at a point of the page. */
export function openClusterMenu(
  commands: CommandRegistry,
  cluster: string,
  at: { x: number; y: number },
  trans: TranslationBundle
): void {
  const groups = [
    [CommandIDs.attach, CommandIDs.insertAttachCode],
    [CommandIDs.addNode, CommandIDs.sync, CommandIDs.doctor],
    [CommandIDs.logIn, CommandIDs.revive, CommandIDs.stop]
  ];
  const label = trans.__('Actions for cluster %1', cluster);
  open(groups, { commands, args: { cluster }, at, title: trans.__('Cluster'), label });
}

interface IMenu {
  commands: CommandRegistry;
  /** They are passed to the commands. */
  args: ReadonlyJSONObject;
  at: { x: number; y: number };
  title: string;
  label: string;
}

/** Opens a menu of groups of commands; once it is closed, what had the focus has it again. */
function open(groups: string[][], { commands, args, at, title, label }: IMenu): void {
  const menu = new Menu({ commands });
  menu.title.label = title;
  menu.node.setAttribute('aria-label', label);
  groups.forEach((group, i) => {
    if (i) {
      menu.addItem({ type: 'separator' });
    }
    group.forEach(command => menu.addItem({ command, args }));
  });
  const before = document.activeElement as HTMLElement | null;
  menu.aboutToClose.connect(() => {
    requestAnimationFrame(() => {
      if (document.activeElement === document.body) {
        before?.focus();
      }
      menu.dispose();
    });
  });
  menu.open(at.x, at.y);
}
