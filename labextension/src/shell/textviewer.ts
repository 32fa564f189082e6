/** A viewer in the main area for a text: a rank's log or stack, or a report. */

import { Clipboard, MainAreaWidget } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { copyIcon, refreshIcon, ToolbarButton } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';

import { ranksIcon } from './icons';

/** A text that can be loaded again and again. */
export interface IShownText {
  /** The id of the widget, so that it is opened only once. */
  id: string;
  title: string;
  /** Whether it is read from its beginning; otherwise its end is shown first. */
  isFromStart?: boolean;
  /** What is said until it has been loaded. */
  waiting?: string;
  /** Loads the text, and a line about it; rejects with an Error that says why there is none. */
  load: () => Promise<{ text: string; about: string }>;
}

/** Loads a text and shows it, with buttons to load it again and to copy it. */
export function createTextViewer(text: IShownText, trans: TranslationBundle): MainAreaWidget<TextViewer> {
  const content = new TextViewer(text, trans);
  const widget = new MainAreaWidget({ content });
  widget.id = text.id;
  widget.title.label = text.title;
  widget.title.icon = ranksIcon;
  widget.title.closable = true;
  widget.toolbar.addItem(
    'refresh',
    new ToolbarButton({
      icon: refreshIcon,
      label: trans.__('Refresh'),
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

export class TextViewer extends Widget {
  constructor(
    private readonly _source: IShownText,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-textviewer');
    this._about.setAttribute('role', 'status');
    this._text.tabIndex = 0;
    this._text.setAttribute('role', 'document');
    this._text.setAttribute('aria-label', _source.title);
    this.node.append(this._about, this._text);
    void this.refresh();
  }

  get text(): string {
    return this._text.textContent ?? '';
  }

  async refresh(): Promise<void> {
    this._about.textContent = this._source.waiting ?? this._trans.__('Loading…');
    try {
      const { text, about } = await this._source.load();
      this._text.textContent = text || this._trans.__('(empty)');
      const at = new Date().toLocaleTimeString();
      this._about.textContent = about ? this._trans.__('%1, as of %2', about, at) : this._trans.__('as of %1', at);
      this._text.scrollTop = this._source.isFromStart ? 0 : this._text.scrollHeight;
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
