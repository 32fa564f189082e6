/** The dialogs that start a cluster: the form, then the progress of the start until it has ended or is cancelled. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { IStateDB } from '@jupyterlab/statedb';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';

import { logIn } from '../shell/login';
import { dismissWhen } from '../shell/notices';
import { CommandIDs, IClusters } from '../tokens';
import { StartForm } from './form';
import { StartProgress } from './progress';
import { EMPTY_FORM, hostChoices, IStartForm, loginOptions, startRequest, withRecent } from './request';
import { showWaiting } from './waiting';

/** Where the last options are saved. */
const KEY = 'jdist:start';
/** Where the hosts are saved at which clusters were started. */
const HOSTS = 'jdist:hosts';

export interface IStartContext {
  clusters: IClusters;
  commands: CommandRegistry;
  state: IStateDB | null;
  trans: TranslationBundle;
}

/** The dialogs of one page: while they are open, or between the form and the progress, no others are opened. */
export class StartDialogs {
  constructor(private readonly _context: IStartContext) {}

  async open(): Promise<void> {
    if (!this._isOpen) {
      this._isOpen = true;
      try {
        await start(this._context);
      } finally {
        this._isOpen = false;
      }
    }
  }

  private _isOpen = false;
}

/** Asks for options, starts a cluster and shows the progress; after a failure it asks again and shows the reason. */
async function start(context: IStartContext): Promise<void> {
  const { clusters, state, trans } = context;
  let form: IStartForm = { ...EMPTY_FORM, ...((await state?.fetch(KEY)) as Partial<IStartForm> | undefined), name: '' };
  let recent = ((await state?.fetch(HOSTS)) as string[] | undefined) ?? [];
  let error = '';
  for (;;) {
    const launch = await clusters.api.launch();
    const names = clusters.all.map(each => each.name);
    const answer = await showDialog({
      title: trans.__('Start a cluster'),
      body: new StartForm(launch, form, hostChoices(launch.hosts, recent, names), error, trans),
      buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('Start') })],
      focusNodeSelector: 'input[name="nproc_per_node"]'
    });
    if (!answer.button.accept || !answer.value) {
      return;
    }
    form = answer.value;
    const host = form.at.trim();
    try {
      if (host && !(await logIn(clusters.api, host, trans, loginOptions(form)))) {
        error = trans.__('The login to %1 was cancelled.', host);
        continue;
      }
      recent = withRecent(recent, host);
      await state?.save(HOSTS, recent);
      const { name } = await clusters.api.start(startRequest(form, launch));
      await state?.save(KEY, { ...form, name: '', install: false });
      void clusters.choose(name);
      error = await showProgress(name, context);
      if (!error) {
        return;
      }
    } catch (reason) {
      error = reason instanceof Error ? reason.message : String(reason);
    }
  }
}

/** Shows the progress of a start. Returns the reason if it fails, else "", also if the user stops waiting for it. */
async function showProgress(name: string, context: IStartContext): Promise<string> {
  const { clusters, commands, trans } = context;
  const body = new StartProgress(clusters, name, trans);
  const texts = {
    title: trans.__('Starting %1', name),
    background: trans.__('The start continues; the panel shows the progress.'),
    stop: trans.__('Cancel start'),
    stopCaption: trans.__('Stop everything that has been started.')
  };
  const isCancelled = await showWaiting(body, texts, trans);
  const end = body.end;
  if (end === 'failed') {
    const reason = clusters.get(name)?.reason || trans.__('%1 could not be started.', name);
    await clusters.api.stop(name).catch(() => undefined); // removes it from the list, which must not hide the reason
    return reason;
  }
  if (end === 'ready') {
    const id = clusters.get(name)?.cluster;
    const notification = Notification.success(trans.__('Cluster %1 is ready.', name), {
      autoClose: 8000,
      actions: [
        {
          label: trans.__('Attach'),
          caption: trans.__('Attach the open notebook to it'),
          callback: () => void commands.execute(CommandIDs.attach, { cluster: name })
        }
      ]
    });
    dismissWhen(notification, clusters, () => !clusters.get(name) || clusters.get(name)?.cluster !== id);
  } else if (isCancelled) {
    await clusters.api.stop(name);
  }
  return '';
}
