/** The mark of a cell that has run on ranks, below its prompt: how far its run is, or how it has ended. */

import { Cell, CodeCell } from '@jupyterlab/cells';
import { TranslationBundle } from '@jupyterlab/translation';
import { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { IRunJson } from '../generated/server';
import { doneCount, MIME, partsOf, VERSION } from '../run/model';
import { IPreferences } from '../tokens';
import { choiceOf } from '../toolbar/distline';
import { markOf } from './mark';

/** The mark of one cell; shown only if the cell has been run on ranks, by its `%%dist` line or while auto was on. */
export class CellProgress implements IDisposable {
  constructor(
    private _cell: CodeCell,
    private _preferences: IPreferences,
    private _trans: TranslationBundle
  ) {
    this._node.className = 'jdist-CellProgress';
    this._node.setAttribute('role', 'img');
    _cell.outputArea.model.changed.connect(this._update, this);
    _cell.model.contentChanged.connect(this._update, this);
    _preferences.changed.connect(this._update, this);
    _cell.disposed.connect(() => this.dispose());
    // An opened notebook has its outputs before its cells are drawn: then there is no place for the mark yet.
    void _cell.ready.then(() => this._update());
    this._update();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._node.remove();
      Signal.clearData(this);
    }
  }

  private _update(): void {
    if (this._isDisposed || this._cell.isDisposed) {
      return;
    }
    const mayShow =
      this._preferences.values.showCellMarks && choiceOf(this._cell.model.sharedModel.source, true) !== null;
    const run = mayShow ? runOf(this._cell.outputArea.model) : undefined;
    const holder = this._cell.inputArea?.node;
    if (!run || !holder) {
      this._node.remove();
      return;
    }
    this._show(run);
    if (this._node.parentElement !== holder) {
      holder.append(this._node);
    }
  }

  private _show(run: IRunJson): void {
    const { text, sign, label, state } = markOf(run, this._trans);
    const shown = `${text} ${sign}`.trim();
    if (this._node.textContent !== shown || this._node.title !== label) {
      this._node.textContent = shown;
      this._node.title = label;
      this._node.setAttribute('aria-label', label);
      const size = partsOf(run).length;
      this._node.style.setProperty('--jdist-done', `${(100 * doneCount(run)) / Math.max(1, size)}%`);
    }
    this._node.dataset.state = state;
  }

  private readonly _node = document.createElement('div');
  private _isDisposed = false;
}

/** The newest run in a cell's output. */
export function runOf(outputs: CodeCell['outputArea']['model']): IRunJson | undefined {
  for (let i = outputs.length - 1; i >= 0; i--) {
    const run = outputs.get(i).data[MIME] as unknown as IRunJson | undefined;
    if (run?.version === VERSION) {
      return run;
    }
  }
  return undefined;
}

/** Whether the cell can have a mark. */
export function isCode(cell: Cell): cell is CodeCell {
  return cell instanceof CodeCell;
}
