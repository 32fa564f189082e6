/** A reader: a text of a rank, its log or its stack, in the main area. */

import { Clipboard, MainAreaWidget } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { copyIcon, refreshIcon, ToolbarButton } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';

import { ranksIcon } from './icons';

/** What is read. */
export interface IText {
  /** Also the widget's id, so that it is opened once. */
  id: string;
  title: string;
  /** Asks for the text and what it is; rejects with an Error that says why there is none. */
  ask: () => Promise<{ text: string; about: string }>;
}

/** Shows it, with buttons to ask again and to copy. Asks at once. */
export function reader(what: IText, trans: TranslationBundle): MainAreaWidget {
  const content = new Reader(what, trans);
  const widget = new MainAreaWidget({ content });
  widget.id = what.id;
  widget.title.label = what.title;
  widget.title.icon = ranksIcon;
  widget.title.closable = true;
  widget.toolbar.addItem(
    'refresh',
    new ToolbarButton({
      icon: refreshIcon,
      label: trans.__('Ask again'),
      onClick: () => void content.refresh()
    })
  );
  widget.toolbar.addItem(
    'copy',
    new ToolbarButton({
      icon: copyIcon,
      label: trans.__('Copy'),
      onClick: () => Clipboard.copyToSystem(content.text)
    })
  );
  return widget;
}

class Reader extends Widget {
  constructor(
    private readonly _what: IText,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-reader');
    this._about.setAttribute('role', 'status');
    this._text.tabIndex = 0;
    this._text.setAttribute('role', 'document');
    this._text.setAttribute('aria-label', _what.title);
    this.node.append(this._about, this._text);
    void this.refresh();
  }

  get text(): string {
    return this._text.textContent ?? '';
  }

  async refresh(): Promise<void> {
    this._about.textContent = this._trans.__('Asking…');
    try {
      const { text, about } = await this._what.ask();
      this._text.textContent = text || this._trans.__('(empty)');
      const at = new Date().toLocaleTimeString();
      this._about.textContent = about ? this._trans.__('%1, as of %2', about, at) : this._trans.__('as of %1', at);
      this._text.scrollTop = this._text.scrollHeight;
    } catch (error) {
      this._about.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  protected onActivateRequest(): void {
    this._text.focus();
  }

  private readonly _about = document.createElement('p');
  private readonly _text = document.createElement('pre');
}
