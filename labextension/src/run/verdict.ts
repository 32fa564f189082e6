/** Why a run does not move, and the ways out as buttons. */

import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { IFinding, IWay } from './model';

/** Goes a way out: what to say when it is done. Rejects with an error that says why it cannot be gone. */
export type Go = (command: string) => Promise<string>;

/** A finding, announced to those who cannot see it; nothing moves while it stays the same. */
export class VerdictBox extends Widget {
  constructor(
    private _go: Go,
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
    head.textContent = `● ${finding.headline}`;
    this.node.append(head);
    for (const line of finding.details ?? []) {
      const detail = document.createElement('div');
      detail.textContent = line;
      this.node.append(detail);
    }
    (finding.ways ?? []).forEach(way => this.node.append(this._way(way)));
  }

  private _way(way: IWay): HTMLElement {
    const row = document.createElement('div');
    row.className = 'jdist-RunWay';
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jp-Button jp-mod-styled jp-mod-minimal';
    button.textContent = way.command;
    const effect = document.createElement('span');
    effect.textContent = way.effect;
    effect.id = `jdist-way-${count++}`;
    button.setAttribute('aria-describedby', effect.id);
    button.addEventListener('click', async () => {
      button.disabled = true;
      effect.textContent = this._trans.__('asked …');
      try {
        effect.textContent = await this._go(way.command);
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
