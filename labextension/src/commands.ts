/** Commands: everything that can be done, by name, for menus, shortcuts, buttons and the palette. */

import { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import {
  addIcon,
  clearIcon,
  codeIcon,
  consoleIcon,
  linkIcon,
  listIcon,
  refreshIcon,
  runIcon,
  stopIcon,
  treeViewIcon
} from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { Acting } from './acting';
import { ranksIcon } from './icons';
import { IText, reader } from './reader';
import { Tabs } from './tabs';
import { CommandIDs } from './tokens';

type Args = ReadonlyPartialJSONObject;
type Command = CommandRegistry.ICommandOptions;

/** Texts that are opened at once, at the most. */
const MOST = 8;

export interface ICommands {
  app: JupyterFrontEnd;
  acting: Acting;
  tabs: Tabs;
  trans: TranslationBundle;
  palette: ICommandPalette | null;
  restorer: ILayoutRestorer | null;
  /** Opens the panel. */
  open: () => void;
  /** Opens the dialog of a start. */
  start: () => Promise<void>;
}

/** Adds the commands to the application and to its palette. */
export function addCommands(with_: ICommands): void {
  const { app, palette, trans } = with_;
  const all = { ...ofClusters(with_), ...ofRanks(with_), ...ofTexts(with_) };
  for (const [id, command] of Object.entries(all)) {
    app.commands.addCommand(id, command);
    if (id !== CommandIDs.choose && id !== CommandIDs.insertCell) {
      palette?.addItem({ command: id, category: trans.__('Ranks') });
    }
  }
}

function ofClusters({ acting, trans, open, start }: ICommands): Record<string, Command> {
  const { clusters } = acting;
  const isThere = (args: Args): boolean => acting.cluster(args) !== undefined;
  const isReady = (args: Args): boolean => acting.cluster(args)?.state === 'ready';
  return {
    [CommandIDs.openPanel]: {
      label: trans.__('Show the ranks panel'),
      caption: trans.__('Clusters and their ranks'),
      icon: ranksIcon,
      execute: open
    },
    [CommandIDs.start]: {
      label: trans.__('Start a cluster…'),
      icon: addIcon,
      isEnabled: () => !clusters.problem,
      execute: () => acting.telling(start)
    },
    [CommandIDs.choose]: {
      label: args => trans.__('Look at cluster %1', text(args.cluster)),
      execute: args => clusters.choose(text(args.cluster))
    },
    [CommandIDs.attach]: {
      label: trans.__('Attach this notebook to the cluster'),
      icon: linkIcon,
      isEnabled: isReady,
      execute: args => acting.attach(args, true)
    },
    [CommandIDs.insertAttachCode]: {
      label: trans.__('Insert code that attaches to the cluster'),
      icon: codeIcon,
      isEnabled: isReady,
      execute: args => acting.attach(args, false)
    },
    [CommandIDs.stop]: {
      label: trans.__('Stop the cluster…'),
      icon: clearIcon,
      isEnabled: isThere,
      execute: args => acting.stop(args)
    },
    [CommandIDs.revive]: {
      label: trans.__('Revive the cluster: start its controller again'),
      icon: runIcon,
      isEnabled: args => acting.cluster(args)?.state === 'orphaned',
      execute: args => acting.revive(args)
    },
    [CommandIDs.refresh]: {
      label: trans.__('Ask the server for its clusters again'),
      icon: refreshIcon,
      execute: () => clusters.refresh()
    }
  };
}

function ofRanks({ acting, trans }: ICommands): Record<string, Command> {
  const which = (args: Args, one: (ranks: string) => string, all: string): string => {
    const ranks = acting.written(args);
    return ranks ? one(ranks) : all;
  };
  const isEnabled = (args: Args): boolean => acting.canAct(args);
  return {
    [CommandIDs.interrupt]: {
      label: args => which(args, ranks => trans.__('Interrupt ranks %1', ranks), trans.__('Interrupt all ranks')),
      caption: args =>
        which(
          args,
          ranks => trans.__('Interrupt ranks %1: variables are kept', ranks),
          trans.__('Interrupt all ranks: variables are kept')
        ),
      icon: stopIcon,
      isEnabled,
      execute: args => acting.interrupt(args)
    },
    [CommandIDs.restart]: {
      label: args => which(args, ranks => trans.__('Restart ranks %1…', ranks), trans.__('Restart all ranks…')),
      caption: args =>
        which(
          args,
          ranks => trans.__('Restart ranks %1: variables are lost', ranks),
          trans.__('Restart all ranks: variables are lost')
        ),
      icon: refreshIcon,
      isEnabled,
      execute: args => acting.restart(args)
    },
    [CommandIDs.console]: {
      label: trans.__('Console of a rank'),
      icon: consoleIcon,
      isEnabled,
      execute: async args => {
        const name = acting.cluster(args)?.name ?? '';
        const [rank] = await acting.pick(args, trans.__('Console of which rank?'));
        if (rank !== undefined) {
          await acting.console(name, rank);
        }
      }
    },
    [CommandIDs.insertCell]: {
      label: args => trans.__('Insert a cell for ranks %1', acting.written(args) ?? trans.__('all')),
      icon: codeIcon,
      execute: args => {
        const ranks = acting.written(args);
        return acting.insert(typeof args.code === 'string' ? args.code : `%%dist${ranks ? ` -r ${ranks}` : ''}\n`);
      }
    }
  };
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

/** Logs and stacks, in the main area; they are there again after a reload. */
function ofTexts(with_: ICommands): Record<string, Command> {
  const { acting, trans } = with_;
  const isEnabled = (args: Args): boolean => acting.canAct(args);
  const kinds: { id: string; label: string; which: string; text: (name: string, rank: number) => IText }[] = [
    {
      id: CommandIDs.logs,
      label: trans.__('Log of a rank'),
      which: trans.__('Log of which rank?'),
      text: (name, rank) => ({
        id: `jdist-log-${name}-${rank}`,
        title: trans.__('Log of rank %1 of %2', rank, name),
        ask: async () => {
          const { text, path } = await acting.api.logs(name, rank);
          return { text, about: path };
        }
      })
    },
    {
      id: CommandIDs.stack,
      label: trans.__('Stack of a rank'),
      which: trans.__('Stack of which rank?'),
      text: (name, rank) => ({
        id: `jdist-stack-${name}-${rank}`,
        title: trans.__('Stack of rank %1 of %2', rank, name),
        ask: async () => ({ text: (await acting.api.stack(name, rank)).text, about: '' })
      })
    }
  ];
  return Object.fromEntries(
    kinds.map(({ id, label, which, text }) => {
      const open = opener(with_, id, text);
      const execute = async (args: Args): Promise<void> => {
        const name = typeof args.cluster === 'string' ? args.cluster : (acting.cluster(args)?.name ?? '');
        const ranks = await acting.pick(args, which);
        ranks.slice(0, MOST).forEach(rank => open(name, rank));
      };
      return [id, { label, icon: id === CommandIDs.logs ? listIcon : treeViewIcon, isEnabled, execute }];
    })
  );
}

function opener(
  { tabs, restorer, trans }: ICommands,
  command: string,
  what: (name: string, rank: number) => IText
): (name: string, rank: number) => void {
  const tracker = new WidgetTracker<MainAreaWidget>({ namespace: command.replace(':', '-') });
  const shown = new Map<MainAreaWidget, Args>();
  void restorer?.restore(tracker, {
    command,
    args: widget => shown.get(widget) ?? {},
    name: widget => widget.id
  });
  return (name, rank) => {
    const text = what(name, rank);
    let widget = tracker.find(each => each.id === text.id);
    if (!widget) {
      widget = reader(text, trans);
      const own = widget;
      shown.set(own, { cluster: name, ranks: [rank] });
      own.disposed.connect(() => shown.delete(own));
      tabs.add(widget);
      void tracker.add(widget);
    }
    tabs.activate(widget);
  };
}
