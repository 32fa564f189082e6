/** Where the ranks of a run are paused, and buttons that resume them. */

import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { CommandIDs } from '../tokens';
import { IPauseJson, IRunJson } from '../generated/server';

/** A list of places, redrawn only when it changes. */
export class PauseBox extends Widget {
  constructor(
    private _step: ((command: string) => Promise<void>) | undefined,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-RunPaused');
    this.node.setAttribute('role', 'status');
    this.hide();
  }

  show_(run: IRunJson): void {
    const places = run.paused ?? [];
    const key = JSON.stringify(places);
    if (key === this._key) {
      return;
    }
    this._key = key;
    this.setHidden(!places.length);
    this.node.replaceChildren();
    if (!places.length) {
      return;
    }
    const trans = this._trans;
    const head = document.createElement('strong');
    head.textContent = `⏸ ${trans.__('run %1 is paused; cells run in the paused frames', run.run)}`;
    this.node.append(head);
    for (const place of places) {
      const line = document.createElement('div');
      line.textContent = placeText(place, trans);
      this.node.append(line);
    }
    if (this._step) {
      this.node.append(this._buttons());
    }
  }

  private _buttons(): HTMLElement {
    const trans = this._trans;
    const row = document.createElement('div');
    const labels: [string, string][] = [
      [CommandIDs.continue, trans.__('Continue')],
      [CommandIDs.next, trans.__('Next line')],
      [CommandIDs.step, trans.__('Step into')],
      [CommandIDs.nextCall, trans.__('Next collective')]
    ];
    for (const [command, label] of labels) {
      const button = document.createElement('button');
      button.type = 'button';
      button.className = 'jp-Button jp-mod-styled';
      button.textContent = label;
      button.addEventListener('click', () => void this._step?.(command));
      row.append(button);
    }
    return row;
  }

  private _key = '[]';
}

/** `[0,2-3] train_step, line 8: loss.backward()`. */
function placeText(place: IPauseJson, trans: TranslationBundle): string {
  const file = place.file ? `${place.file.split('/').pop()} ` : '';
  const at = trans.__('%1, %2line %3', place.function, file, place.line);
  const source = place.source ? `: ${place.source}` : '';
  const thread = place.thread ? ` ${trans.__('(in thread %1)', place.thread)}` : '';
  const call = place.about_to ? ` · ${trans.__('about to call %1', place.about_to)}` : '';
  const value = place.returns ? ` · ${trans.__('about to return %1', place.returns)}` : '';
  return `[${place.ranks}] ${at}${source}${thread}${call}${value}${place.error ? ` · ${place.error}` : ''}`;
}
