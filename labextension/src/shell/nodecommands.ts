/** The commands that act on a cluster's nodes: some are added, code is copied to them, they are examined. */

import { MainAreaWidget, Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { addIcon, checkIcon, fileUploadIcon } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';

import { Actions, Args } from '../actions';
import { CommandIDs } from '../tokens';
import { notebookFolder } from './notebookfolder';
import { askForPath } from './pathdialog';
import { Tabs } from './tabs';
import { createTextViewer, IShownText, TextViewer } from './textviewer';

export interface INodeCommands {
  actions: Actions;
  tabs: Tabs;
  trans: TranslationBundle;
  /** Opens the dialog that adds nodes to a cluster. */
  addNode: (cluster: string) => Promise<void>;
  /** The notebooks of this page. */
  notebooks: INotebookTracker | null;
}

export function nodeCommands(options: INodeCommands): Record<string, CommandRegistry.ICommandOptions> {
  const { actions, addNode, notebooks, trans } = options;
  const isReady = (args: Args): boolean => actions.cluster(args)?.state === 'ready';
  const examined = new Map<string, MainAreaWidget<TextViewer>>();
  return {
    [CommandIDs.addNode]: {
      label: args =>
        actions.cluster(args)?.adding?.state === 'adding'
          ? trans.__('Show the nodes that are being added…')
          : trans.__('Add a node…'),
      caption: trans.__('One node or several more, on whose ranks cells run as well'),
      icon: addIcon,
      isEnabled: args => isReady(args) || actions.cluster(args)?.adding?.state === 'adding',
      execute: async args => {
        const name = actions.existing(args)?.name;
        if (name !== undefined) {
          await actions.reportErrors(() => addNode(name));
        }
      }
    },
    [CommandIDs.sync]: {
      label: trans.__('Sync code…'),
      caption: trans.__('Copy a folder of this server to every node, changed files only, and import from it'),
      icon: fileUploadIcon,
      isEnabled: isReady,
      execute: async args => {
        const name = actions.existing(args)?.name;
        const path = name && (await askForPath(name, notebookFolder(notebooks?.currentWidget?.context.path), trans));
        if (name && path) {
          await sync(actions.api.sync(name, path), path, trans);
        }
      }
    },
    [CommandIDs.doctor]: {
      label: trans.__('Run doctor'),
      caption: trans.__('Examine all nodes and the network between them; what was found comes first'),
      icon: checkIcon,
      isEnabled: args => actions.isAvailable(args),
      execute: args => {
        const name = actions.existing(args)?.name;
        if (name !== undefined) {
          examine(name, options, examined);
        }
      }
    }
  };
}

/** Tells how far it is, and then what was copied or why not. */
async function sync(work: Promise<{ text?: string }>, path: string, trans: TranslationBundle): Promise<void> {
  const id = Notification.emit(trans.__('Syncing %1…', path), 'in-progress', { autoClose: false });
  try {
    const { text } = await work;
    const message = text ?? trans.__('Syncing %1 takes a while; you are told when it is done.', path);
    Notification.update({ id, message, type: text ? 'success' : 'info', autoClose: 8000 });
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    Notification.update({ id, message, type: 'error', autoClose: false });
  }
}

/** Examines the nodes again, and shows the report in a tab, which is not opened again after a reload. */
function examine(
  name: string,
  { actions, tabs, trans }: INodeCommands,
  opened: Map<string, MainAreaWidget<TextViewer>>
): void {
  let widget = opened.get(name);
  if (!widget) {
    const text: IShownText = {
      id: `jdist-doctor-${name}`,
      title: trans.__('Doctor: %1', name),
      isFromStart: true,
      waiting: trans.__('Examining the nodes and the network between them…'),
      load: async () => ({ text: (await actions.api.doctor(name)).text, about: '' })
    };
    widget = createTextViewer(text, trans);
    widget.disposed.connect(() => opened.delete(name));
    opened.set(name, widget);
    tabs.add(widget);
  } else {
    void widget.content.refresh();
  }
  tabs.activate(widget);
}
