/** The commands, which menus, shortcuts, buttons and the palette refer to by their names. */

import { ILayoutRestorer } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { IEditorServices } from '@jupyterlab/codeeditor';
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

import { Args } from '../actions';
import { hostOf, needsLogin } from '../states';
import { CommandIDs } from '../tokens';
import { ranksIcon } from './icons';
import { paletteCategory } from './names';
import { INodeCommands, nodeCommands } from './nodecommands';
import { IRunCommands, runCommands } from './runcommands';
import { stepCommands } from './steps';
import { createSourceViewer, sourceId, SourceViewer } from './sourceviewer';
import { createTextViewer, IShownText } from './textviewer';

type Command = CommandRegistry.ICommandOptions;

/** At most so many texts are opened at once. */
const MOST_TEXTS = 8;
/** Commands that need arguments, and so are not in the palette. */
const HIDDEN: string[] = [
  CommandIDs.choose,
  CommandIDs.insertCell,
  CommandIDs.runBeside,
  CommandIDs.chooseFrame,
  CommandIDs.deleteVariable,
  CommandIDs.openSource
];

export interface ICommands extends INodeCommands, IRunCommands {
  palette: ICommandPalette | null;
  restorer: ILayoutRestorer | null;
  /** What makes editors; Notebook 7 has it, too. */
  editors: IEditorServices | null;
  /** Opens the panel. */
  open: () => void;
  /** Opens the panel with its section of resources. */
  openResources: () => void;
  /** Opens the dialog that starts a cluster. */
  start: () => Promise<void>;
}

/** Adds the commands to the application and to its palette. */
export function addCommands(options: ICommands): void {
  const { app, palette, trans } = options;
  const steps = { ...stepCommands(options.actions, trans), ...sourceCommand(options) };
  const more = { ...nodeCommands(options), ...runCommands(options) };
  const all = { ...clusterCommands(options), ...rankCommands(options), ...steps, ...textCommands(options), ...more };
  for (const [id, command] of Object.entries(all)) {
    app.commands.addCommand(id, command);
    if (!HIDDEN.includes(id)) {
      palette?.addItem({ command: id, category: paletteCategory(trans) });
    }
  }
}

function clusterCommands({ actions, trans, open, openResources, start }: ICommands): Record<string, Command> {
  const { clusters } = actions;
  const exists = (args: Args): boolean => actions.cluster(args) !== undefined;
  const isReady = (args: Args): boolean => actions.cluster(args)?.state === 'ready';
  return {
    [CommandIDs.openPanel]: {
      label: trans.__('Show the ranks panel'),
      caption: trans.__('Clusters and their ranks'),
      icon: ranksIcon,
      execute: async args => {
        if (exists(args) && typeof args.cluster === 'string') {
          await clusters.choose(args.cluster);
        }
        open();
      }
    },
    [CommandIDs.showResources]: {
      label: trans.__('Show resources'),
      caption: trans.__('CPU, memory, GPU and network of ranks and nodes over time'),
      icon: ranksIcon,
      execute: openResources
    },
    [CommandIDs.start]: {
      // The launcher and the menu File ▸ New list things to make, by their names.
      label: args =>
        args.isLauncher
          ? trans.__('Distributed cluster')
          : args.isNewMenu
            ? trans.__('Distributed cluster…')
            : trans.__('Start a cluster…'),
      caption: trans.__('Start processes that run notebook cells together, with torch.distributed'),
      icon: args => (args.isLauncher || args.isNewMenu ? ranksIcon : addIcon),
      isEnabled: () => !clusters.problem,
      execute: () => actions.reportErrors(start)
    },
    [CommandIDs.choose]: {
      label: args => trans.__('Show cluster %1', text(args.cluster)),
      execute: args => clusters.choose(text(args.cluster))
    },
    [CommandIDs.attach]: {
      label: args =>
        typeof args.cluster === 'string'
          ? trans.__('Attach this notebook to %1', args.cluster)
          : trans.__('Attach this notebook to the cluster'),
      icon: linkIcon,
      isEnabled: isReady,
      execute: args => actions.attach(args, true)
    },
    [CommandIDs.insertAttachCode]: {
      label: trans.__('Insert code that attaches to the cluster'),
      icon: codeIcon,
      isEnabled: isReady,
      execute: args => actions.attach(args, false)
    },
    [CommandIDs.stop]: {
      label: trans.__('Stop the cluster…'),
      icon: clearIcon,
      isEnabled: exists,
      execute: args => actions.stop(args)
    },
    [CommandIDs.instructions]: {
      label: trans.__('Show the line with which nodes join'),
      icon: codeIcon,
      isEnabled: args => !!actions.cluster(args)?.has_instructions,
      execute: args => actions.showInstructions(args)
    },
    [CommandIDs.revive]: {
      label: trans.__('Revive the cluster: start its controller again'),
      icon: runIcon,
      isEnabled: args => actions.cluster(args)?.state === 'orphaned',
      execute: args => actions.revive(args)
    },
    [CommandIDs.logIn]: {
      label: args => trans.__('Log in to %1…', hostOf(actions.cluster(args)?.name ?? '')),
      caption: trans.__('Log in to the host of the cluster now'),
      icon: runIcon,
      isEnabled: args => exists(args) && needsLogin(actions.cluster(args)!),
      isVisible: args => hostOf(actions.cluster(args)?.name ?? '') !== '',
      execute: args => actions.logIn(args)
    },
    [CommandIDs.refresh]: {
      label: trans.__('Refresh the list of clusters'),
      icon: refreshIcon,
      execute: () => clusters.refresh()
    }
  };
}

function rankCommands({ actions, trans }: ICommands): Record<string, Command> {
  const which = (args: Args, one: (ranks: string) => string, all: string): string => {
    const ranks = actions.ranksText(args);
    return ranks ? one(ranks) : all;
  };
  const isEnabled = (args: Args): boolean => actions.isAvailable(args);
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
      execute: args => actions.interrupt(args)
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
      execute: args => actions.restart(args)
    },
    [CommandIDs.console]: {
      label: trans.__('Console of a rank'),
      icon: consoleIcon,
      isEnabled,
      execute: async args => {
        const name = actions.cluster(args)?.name ?? '';
        const [rank] = await actions.pickRanks(args, trans.__('Console of which rank?'));
        if (rank !== undefined) {
          await actions.console(name, rank);
        }
      }
    },
    [CommandIDs.runBeside]: {
      label: args => trans.__('Run a cell on ranks %1…', actions.ranksText(args) ?? trans.__('all')),
      icon: codeIcon,
      execute: args => (args.isShown ? actions.showBeside(args) : actions.runBeside(args))
    },
    [CommandIDs.deleteVariable]: {
      label: args => trans.__('Delete %1…', text(args.name)),
      icon: clearIcon,
      execute: args => actions.deleteVariable(args, text(args.name))
    },
    [CommandIDs.insertCell]: {
      label: args => trans.__('Insert a cell for ranks %1', actions.ranksText(args) ?? trans.__('all')),
      icon: codeIcon,
      execute: args => {
        const ranks = actions.ranksText(args);
        return actions.insert(typeof args.code === 'string' ? args.code : `%%dist${ranks ? ` -r ${ranks}` : ''}\n`);
      }
    }
  };
}

/** Opens a source file of a paused rank at a line. */
function sourceCommand({ actions, tabs, trans, editors }: ICommands): Record<string, Command> {
  const opened = new Map<string, MainAreaWidget<SourceViewer>>();
  return {
    [CommandIDs.openSource]: {
      label: args => trans.__('Open %1', text(args.file)),
      isEnabled: () => editors !== null,
      execute: args => {
        const source = { cluster: text(args.cluster), rank: actions.ranks(args)[0] ?? 0, file: text(args.file) };
        let widget = opened.get(sourceId(source));
        if (!widget && editors) {
          widget = createSourceViewer(source, actions.clusters, editors, trans);
          opened.set(widget.id, widget);
          widget.disposed.connect(({ id }) => opened.delete(id));
          tabs.add(widget);
        }
        if (widget) {
          tabs.activate(widget);
          widget.content.revealLine(Number(args.line) || 1);
        }
      }
    }
  };
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

/** The logs and stacks of ranks, shown in the main area; they are opened again after a reload. */
function textCommands(options: ICommands): Record<string, Command> {
  const { actions, trans } = options;
  const isEnabled = (args: Args): boolean => actions.isAvailable(args);
  const kinds: { id: string; label: string; which: string; text: (name: string, rank: number) => IShownText }[] = [
    {
      id: CommandIDs.logs,
      label: trans.__('Log of a rank'),
      which: trans.__('Log of which rank?'),
      text: (name, rank) => ({
        id: `jdist-log-${name}-${rank}`,
        title: trans.__('Log of rank %1 of %2', rank, name),
        load: async () => {
          const { text, path } = await actions.api.logs(name, rank);
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
        load: async () => ({ text: (await actions.api.stack(name, rank)).text, about: '' })
      })
    }
  ];
  return Object.fromEntries(
    kinds.map(({ id, label, which, text }) => {
      const open = opener(options, id, text);
      const execute = async (args: Args): Promise<void> => {
        const name = typeof args.cluster === 'string' ? args.cluster : (actions.cluster(args)?.name ?? '');
        const ranks = await actions.pickRanks(args, which);
        ranks.slice(0, MOST_TEXTS).forEach(rank => open(name, rank));
      };
      return [id, { label, icon: id === CommandIDs.logs ? listIcon : treeViewIcon, isEnabled, execute }];
    })
  );
}

function opener(
  { tabs, restorer, trans }: ICommands,
  command: string,
  what: (name: string, rank: number) => IShownText
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
      const created = (widget = createTextViewer(text, trans));
      shown.set(created, { cluster: name, ranks: [rank] });
      created.disposed.connect(() => shown.delete(created));
      tabs.add(widget);
      void tracker.add(widget);
    }
    tabs.activate(widget);
  };
}
