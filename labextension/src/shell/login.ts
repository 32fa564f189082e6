/** A login to another host, in dialogs: it is waited for, and what ssh asks is asked in ssh's own words. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { Api, ILoginOptions } from '../api';
import { ILoginState } from '../generated/server';

/** Milliseconds within which a login that asks nothing mostly is over: until then, no dialog is shown. */
const QUICK = 500;

/** Logs in for the server. Returns whether the user has not cancelled it. Rejects with ssh's reason if it fails. */
export async function logIn(
  api: Api,
  host: string,
  trans: TranslationBundle,
  options: ILoginOptions = {}
): Promise<boolean> {
  let step = api.login(host, options);
  for (;;) {
    const state = await whileShown(api, host, step, trans);
    if (state?.state === 'open') {
      return true;
    }
    const answer = state && (await askFor(host, state, trans));
    if (state === undefined || answer === undefined) {
      await api.endLogin(host);
      return false;
    }
    step = api.login(host, { question: state.question, answer });
  }
}

/** The next step that is not to wait, undefined if the user cancels; a dialog shows what is waited for. */
async function whileShown(
  api: Api,
  host: string,
  step: Promise<ILoginState>,
  trans: TranslationBundle
): Promise<ILoginState | undefined> {
  const body = new Widget();
  body.node.setAttribute('role', 'status');
  const show = (text: string): void => {
    body.node.textContent = text || trans.__('ssh logs in…');
  };
  show('');
  const dialog = new Dialog({
    title: trans.__('Logging in to %1', host),
    body,
    buttons: [Dialog.cancelButton({ label: trans.__('Cancel') })]
  });
  const timer = window.setTimeout(() => void cancelled(), QUICK);
  let cancel: () => void = () => undefined;
  const isCancelled = new Promise<undefined>(resolve => (cancel = () => resolve(undefined)));
  const cancelled = async (): Promise<void> => {
    await dialog.launch().catch(() => undefined);
    cancel(); // which changes nothing after the end of the login
  };
  const next = async (): Promise<ILoginState> => {
    let state = await step;
    while (state.state === 'connecting') {
      show(state.text);
      state = await api.login(host, { question: 0 });
    }
    return state;
  };
  const waited = next();
  waited.catch(() => undefined); // after a cancellation, its end is of no interest
  try {
    return await Promise.race([waited, isCancelled]);
  } finally {
    window.clearTimeout(timer);
    dialog.dispose();
  }
}

/** What the user answers; undefined if they cancel. It is kept nowhere. */
async function askFor(host: string, state: ILoginState, trans: TranslationBundle): Promise<string | undefined> {
  const { value, button } = await showDialog({
    title: trans.__('Log in to %1', host),
    body: new Answer(state, trans),
    buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('Answer') })],
    focusNodeSelector: 'input'
  });
  return button.accept ? (value ?? '') : undefined;
}

class Answer extends Widget implements Dialog.IBodyWidget<string> {
  constructor({ text, is_secret }: ILoginState, trans: TranslationBundle) {
    super();
    this.addClass('jdist-Answer');
    const label = document.createElement('label');
    label.textContent = text;
    label.htmlFor = this._input.id = 'jdist-login-answer';
    this._input.type = is_secret ? 'password' : 'text';
    this._input.autocomplete = 'off';
    this._input.className = 'jp-mod-styled';
    const about = document.createElement('p');
    about.className = 'jdist-note';
    about.textContent = trans.__('ssh asks this. The answer goes to ssh and is not kept.');
    this.node.append(label, this._input, about);
  }

  getValue(): string {
    return this._input.value;
  }

  private readonly _input = document.createElement('input');
}
