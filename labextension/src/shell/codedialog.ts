/** Asks for the code of a cell, in a dialog. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

/** The code, or undefined if the user has typed none or cancelled. */
export async function askForCode(title: string, about: string, trans: TranslationBundle): Promise<string | undefined> {
  const { value, button } = await showDialog({
    title,
    body: new CodeField(about, trans),
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Run') })],
    focusNodeSelector: 'textarea'
  });
  return button.accept && value?.trim() ? value : undefined;
}

class CodeField extends Widget implements Dialog.IBodyWidget<string> {
  constructor(about: string, trans: TranslationBundle) {
    super();
    this.addClass('jdist-CodeField');
    const label = document.createElement('p');
    label.textContent = about;
    this._text.rows = 4;
    this._text.spellcheck = false;
    this._text.setAttribute('aria-label', trans.__('Code of the cell'));
    this.node.append(label, this._text);
  }

  getValue(): string {
    return this._text.value;
  }

  private readonly _text = document.createElement('textarea');
}
