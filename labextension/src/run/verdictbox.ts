/** Why a run does not move, and the suggested actions as buttons. */

import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { VERDICT_SIGN } from '../states';
import { IVerdictJson } from '../generated/server';
import { remedyRow, TakeRemedy } from './remedyrow';

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

  /** With `isActive`, the run is not over, so that the suggested actions can be taken. */
  show_(finding: IVerdictJson | undefined, isActive: boolean): void {
    const key = JSON.stringify([finding ?? null, isActive]);
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
    for (const remedy of isActive ? (finding.remedies ?? []) : []) {
      this.node.append(remedyRow(remedy, this._take, this._trans));
    }
  }

  private _key = '';
}
