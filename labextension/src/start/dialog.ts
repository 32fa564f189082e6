/** The start of a cluster, from the form to its first rank: asked for, waited for, or given up. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { IStateDB } from '@jupyterlab/statedb';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';

import { CommandIDs, IClusters } from '../tokens';
import { Form, IAsked, NOTHING, request } from './form';
import { Waiting } from './waiting';

/** Where the last choice is kept. */
const KEY = 'jdist:start';

export interface IStarting {
  clusters: IClusters;
  commands: CommandRegistry;
  state: IStateDB | null;
  trans: TranslationBundle;
}

/** Asks what to start, starts it, and waits for it with whoever is there. */
export async function start(with_: IStarting): Promise<void> {
  const { clusters, state, trans } = with_;
  let asked: IAsked = { ...NOTHING, ...((await state?.fetch(KEY)) as Partial<IAsked> | undefined), name: '' };
  let refusal = '';
  for (;;) {
    const launch = await clusters.api.launch();
    const answer = await showDialog({
      title: trans.__('Start a cluster'),
      body: new Form(launch, asked, refusal, trans),
      buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('Start') })],
      focusNodeSelector: 'input[name="nproc_per_node"]'
    });
    if (!answer.button.accept || !answer.value) {
      return;
    }
    asked = answer.value;
    try {
      const { name } = await clusters.api.start(request(asked));
      await state?.save(KEY, { ...asked, name: '' });
      void clusters.choose(name);
      refusal = await wait(name, with_);
      if (!refusal) {
        return;
      }
    } catch (error) {
      refusal = error instanceof Error ? error.message : String(error);
    }
  }
}

/** Why the start has failed; "" if it has not, or goes on without being waited for. */
async function wait(name: string, with_: IStarting): Promise<string> {
  const { clusters, commands, trans } = with_;
  const body = new Waiting(clusters, name, trans);
  const dialog = new Dialog({
    title: trans.__('Starting %1', name),
    body,
    hasClose: true,
    buttons: [
      Dialog.cancelButton({
        label: trans.__('Go on without waiting'),
        caption: trans.__('The start goes on; the panel shows how far it is.'),
        actions: ['hide']
      }),
      Dialog.warnButton({ label: trans.__('Give up'), caption: trans.__('End what has been started.') })
    ]
  });
  body.ended.connect(() => dialog.reject());
  const { button } = await dialog.launch();
  const end = body.end;
  if (end === 'failed') {
    const reason = clusters.get(name)?.reason || trans.__('%1 could not be started.', name);
    await clusters.api.stop(name); // forgets it
    return reason;
  }
  if (end === 'stands') {
    Notification.success(trans.__('Cluster %1 stands.', name), {
      autoClose: 8000,
      actions: [
        {
          label: trans.__('Attach'),
          caption: trans.__('Attach the open notebook to it'),
          callback: () => void commands.execute(CommandIDs.attach, { cluster: name })
        }
      ]
    });
  } else if (button.accept) {
    await clusters.api.stop(name);
  }
  return '';
}
