/** Asks for the folder or file that is copied to every node, in a dialog. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

/** The path, or undefined if the user has typed none or cancelled; `path` is offered first. */
export async function askForPath(cluster: string, path: string, trans: TranslationBundle): Promise<string | undefined> {
  const { value, button } = await showDialog({
    title: trans.__('Sync code to all nodes of %1', cluster),
    body: new PathField(path, trans),
    buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('Sync') })],
    focusNodeSelector: 'input'
  });
  return button.accept && value?.trim() ? value.trim() : undefined;
}

class PathField extends Widget implements Dialog.IBodyWidget<string> {
  constructor(path: string, trans: TranslationBundle) {
    super();
    this.addClass('jdist-PathField');
    const label = document.createElement('label');
    label.textContent = trans.__('Folder or file of the Jupyter server');
    label.htmlFor = this._input.id = 'jdist-sync-path';
    this._input.type = 'text';
    this._input.className = 'jp-mod-styled';
    this._input.spellcheck = false;
    this._input.required = true;
    this._input.value = path;
    this._input.setAttribute('aria-describedby', 'jdist-sync-about');
    const about = document.createElement('p');
    about.id = 'jdist-sync-about';
    about.className = 'jdist-note';
    about.textContent = trans.__(
      'Only changed files are copied, and all ranks import from the copy. Left out are .git, __pycache__ and what .gitignore files name.'
    );
    this.node.append(label, this._input, about);
  }

  getValue(): string {
    return this._input.value;
  }

  private readonly _input = document.createElement('input');
}
