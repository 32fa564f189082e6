/** What cells beside a run have written: it stays when the finding that suggested them is gone. */

import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

/** The answers in their order, read out by screen readers as they come; empty and hidden at first. */
export class Answers extends Widget {
  constructor(private _trans: TranslationBundle) {
    super();
    this.addClass('jdist-RunAnswers');
    this.node.setAttribute('role', 'log');
    this.node.setAttribute('aria-label', this._trans.__('Output of cells beside this run'));
    this.hide();
  }

  /** Shows what the action `label` answers, or why it fails. Resolves with what to say beside the action's button. */
  async keep(label: string, answer: Promise<string>): Promise<string> {
    try {
      const text = await answer;
      if (!text) {
        return this._trans.__('nothing was run');
      }
      this._add(label, text, false);
      return this._trans.__('its output is below');
    } catch (error) {
      this._add(label, error instanceof Error ? error.message : String(error), true);
      throw error;
    }
  }

  private _add(label: string, text: string, isError: boolean): void {
    if (this.isDisposed) {
      return;
    }
    const row = document.createElement('div');
    row.className = isError ? 'jdist-RunAnswer jdist-mod-failed' : 'jdist-RunAnswer';
    const head = document.createElement('code');
    head.textContent = label;
    const body = document.createElement('pre');
    body.textContent = isError ? this._trans.__('✗ failed: %1', text) : text;
    row.append(head, body);
    this.node.append(row);
    this.show();
  }
}
