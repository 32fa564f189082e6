/** The context menu of ranks. */

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
  const menu = new Menu({ commands });
  menu.title.label = trans.__('Ranks');
  menu.node.setAttribute('aria-label', trans.__('Actions for the selected ranks'));
  [CommandIDs.interrupt, CommandIDs.restart].forEach(command => menu.addItem({ command, args }));
  menu.addItem({ type: 'separator' });
  [CommandIDs.pause, ...STEPS].forEach(command => menu.addItem({ command, args }));
  menu.addItem({ type: 'separator' });
  [CommandIDs.logs, CommandIDs.stack, CommandIDs.console].forEach(command => menu.addItem({ command, args }));
  menu.addItem({ type: 'separator' });
  menu.addItem({ command: CommandIDs.insertCell, args });
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
