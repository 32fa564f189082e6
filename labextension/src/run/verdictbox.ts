/** Why a run does not move, and the suggested actions as buttons. */

import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { effectOf, IRemedy, labelOf } from '../remedy';
import { VERDICT_SIGN } from '../states';
import { IFinding } from './model';

/** Carries out a remedy. Resolves with what to say when it is done; rejects with the reason if it fails. */
export type TakeRemedy = (remedy: IRemedy) => Promise<string>;

/** A finding, announced by screen readers; nothing is drawn again while it stays the same. */
export class VerdictBox extends Widget {
  constructor(
    private _take: TakeRemedy,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-RunVerdict');
    this.node.setAttribute('role', 'status');
    this.hide();
  }

  show_(finding: IFinding | undefined): void {
    const key = JSON.stringify(finding ?? null);
    if (key === this._key) {
      return;
    }
    this._key = key;
    this.setHidden(!finding);
    this.node.replaceChildren();
    if (!finding) {
      return;
    }
    this.toggleClass('jdist-mod-certain', finding.is_certain);
    const head = document.createElement('strong');
    head.textContent = `${VERDICT_SIGN} ${finding.headline}`;
    this.node.append(head);
    for (const line of finding.details ?? []) {
      const detail = document.createElement('div');
      detail.textContent = line;
      this.node.append(detail);
    }
    (finding.remedies ?? []).forEach(remedy => this.node.append(this._row(remedy)));
  }

  private _row(remedy: IRemedy): HTMLElement {
    const row = document.createElement('div');
    row.className = 'jdist-RunRemedy';
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jp-Button jp-mod-styled jp-mod-minimal';
    button.textContent = labelOf(remedy);
    const effect = document.createElement('span');
    effect.textContent = effectOf(remedy);
    effect.id = `jdist-remedy-${count++}`;
    button.setAttribute('aria-describedby', effect.id);
    button.addEventListener('click', async () => {
      button.disabled = true;
      effect.textContent = this._trans.__('requested …');
      try {
        effect.textContent = await this._take(remedy);
      } catch (error) {
        effect.textContent = error instanceof Error ? error.message : String(error);
        button.disabled = false;
      }
    });
    row.append(button, effect);
    return row;
  }

  private _key = 'null';
}

let count = 0;
