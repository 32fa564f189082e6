/** The commands about one run: its cell is shown, and what is said of why it does not move is copied. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { copyIcon, notebookIcon } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';

import { Actions, Args } from '../actions';
import { ICluster, IRunId } from '../api';
import { cellOfRun, showCell } from '../cells/cellofrun';
import { describeUnknown, meantRun } from '../meantrun';
import { CommandIDs } from '../tokens';
import { verdictText } from '../verdicttext';

export interface IRunCommands {
  app: JupyterFrontEnd;
  actions: Actions;
  trans: TranslationBundle;
  /** The notebooks of this page. */
  notebooks: INotebookTracker | null;
}

export function runCommands({
  app,
  actions,
  notebooks,
  trans
}: IRunCommands): Record<string, CommandRegistry.ICommandOptions> {
  const runOf = (args: Args): IRunId | undefined => meantRun(args.run, actions.ranks(args), actions.cluster(args));
  const verdicts = (args: Args): ICluster['verdicts'] =>
    actions.cluster(args)?.verdicts?.filter(each => args.run === undefined || each.run === args.run);
  const goToCell = (args: Args): string => {
    const run = runOf(args)?.run;
    return run ? trans.__('Go to the cell of run %1', run) : trans.__('Go to the cell');
  };
  return {
    [CommandIDs.goToCell]: {
      label: goToCell,
      caption: goToCell,
      icon: notebookIcon,
      isEnabled: args => runOf(args) !== undefined,
      execute: async args => {
        const run = runOf(args);
        const found = run && cellOfRun(notebooks, run);
        if (found) {
          await showCell(app.shell, found);
        } else if (run) {
          const about = describeUnknown(run, actions.cluster(args), trans);
          await actions.show(trans.__('Run %1 of %2', run.run, run.cluster), about, `%dist output ${run.run}`);
        }
      }
    },
    [CommandIDs.copyVerdict]: {
      label: trans.__('Copy the verdict'),
      caption: trans.__('Copy the verdict, with details and suggested actions, as text'),
      icon: copyIcon,
      isEnabled: args => !!verdicts(args)?.length,
      execute: args => {
        const found = verdicts(args) ?? [];
        Clipboard.copyToSystem(found.map(verdictText).join('\n\n'));
        const runs = found.map(each => each.run).join(', ');
        Notification.success(trans.__('The verdict on run %1 is in the clipboard.', runs), { autoClose: 4000 });
      }
    }
  };
}
