/** The dialogs that add nodes to a cluster: the form, then the progress until they have joined or it is cancelled. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';

import { showWaiting } from '../start/waiting';
import { IClusters } from '../tokens';
import { AddForm } from './form';
import { AddProgress } from './progress';
import { addRequest, IAddForm } from './request';

/** The dialogs of one page: while they are open, no others are opened. */
export class AddNodeDialogs {
  constructor(
    private readonly _clusters: IClusters,
    private readonly _trans: TranslationBundle
  ) {}

  /** Asks for options and adds nodes; of those that are being added already, shows the progress. */
  async open(name: string): Promise<void> {
    if (this._isOpen) {
      return;
    }
    this._isOpen = true;
    try {
      const adding = this._clusters.get(name)?.adding;
      if (adding?.state !== 'adding') {
        await this._ask(name, adding?.state === 'failed' ? adding.text : '');
        return;
      }
      const error = await this._showProgress(name, adding.number);
      if (error) {
        await this._ask(name, error);
      }
    } finally {
      this._isOpen = false;
    }
  }

  /** Asks until the user cancels, or nodes have been added; `error` is why they have not. */
  private async _ask(name: string, error: string): Promise<void> {
    const { api } = this._clusters;
    const trans = this._trans;
    let form: IAddForm | null = null;
    for (;;) {
      const [launch, adding] = await Promise.all([api.launch(), api.addingOptions(name)]);
      const answer: Dialog.IResult<IAddForm> = await showDialog({
        title: trans.__('Add nodes to %1', name),
        body: new AddForm(launch, adding, form, error, trans),
        buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('Add') })],
        focusNodeSelector: 'input[type="text"]'
      });
      if (!answer.button.accept || !answer.value) {
        return;
      }
      const given = answer.value;
      form = given;
      try {
        const { number } = await api.addNodes(name, addRequest(given, launch, adding));
        error = await this._showProgress(name, number);
        if (!error) {
          return;
        }
      } catch (reason) {
        error = reason instanceof Error ? reason.message : String(reason);
      }
    }
  }

  /** Shows how far it is. Returns the reason if it fails, else "", also if the user stops waiting for it. */
  private async _showProgress(name: string, number: number): Promise<string> {
    const trans = this._trans;
    const body = new AddProgress(this._clusters, name, number, trans);
    const texts = {
      title: trans.__('Adding nodes to %1', name),
      background: trans.__('It goes on; the panel shows how far it is.'),
      stop: trans.__('Stop adding'),
      stopCaption: trans.__('Wait for no more nodes. Those that have joined stay.')
    };
    const isCancelled = await showWaiting(body, texts, trans);
    const problem = body.end === 'failed' ? (body.adding?.text ?? '') : '';
    if (body.end === 'failed' || isCancelled) {
      await this._clusters.api.endAdding(name); // also after a failure: the panel no longer has to report it
    }
    return problem;
  }

  private _isOpen = false;
}
