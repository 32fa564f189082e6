/** A suggested action: a button, and what it does. */

import { TranslationBundle } from '@jupyterlab/translation';

import { effectOf, labelOf } from '../remedy';
import { IRemedy } from '../generated/server';

/** Carries out a remedy. Resolves with what to say when it is done; rejects with the reason if it fails. */
export type TakeRemedy = (remedy: IRemedy) => Promise<string>;

export function remedyRow(remedy: IRemedy, take: TakeRemedy, trans: TranslationBundle): HTMLElement {
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
    effect.textContent = trans.__('requested …');
    try {
      effect.textContent = await take(remedy);
      button.disabled = remedy.action !== 'run_cell'; // a cell that has failed can be tried again
    } catch (error) {
      effect.textContent = error instanceof Error ? error.message : String(error);
      button.disabled = false;
    }
  });
  row.append(button, effect);
  return row;
}

let count = 0;
