/** The progress of a cell that begins with `%%dist`, beside its prompt: how many ranks are done, of how many. */

import { Cell, CodeCell } from '@jupyterlab/cells';
import { TranslationBundle } from '@jupyterlab/translation';
import { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { doneCount, IRunBundle, MIME, partsOf, VERSION } from '../run/model';
import { isFailure, outcomeState, VERDICT_SIGN } from '../states';

const BEGINS = /^\s*%%dist(\s|$)/;

/** The mark of one cell; shown only while the cell begins with `%%dist` and has been run. */
export class CellProgress implements IDisposable {
  constructor(
    private _cell: CodeCell,
    private _trans: TranslationBundle
  ) {
    this._node.className = 'jdist-CellProgress';
    this._node.setAttribute('role', 'img');
    _cell.outputArea.model.changed.connect(this._update, this);
    _cell.model.contentChanged.connect(this._update, this);
    _cell.disposed.connect(() => this.dispose());
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
    const run = BEGINS.test(this._cell.model.sharedModel.source) ? runOf(this._cell.outputArea.model) : undefined;
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

  private _show(run: IRunBundle): void {
    const parts = partsOf(run);
    const [done, failed] = [doneCount(run), parts.filter(part => isFailure(part.state)).length];
    const texts = [this._trans.__('%1 of %2 ranks done', done, parts.length)];
    if (failed) {
      texts.push(this._trans.__('%1 failed', failed));
    } else if (run.paused?.length) {
      texts.push(this._trans.__('paused'));
    } else if (run.verdict && run.state !== 'done') {
      texts.push(this._trans.__('the run does not move'));
    }
    const ending = failed ? 'error' : run.state === 'done' ? 'value' : undefined;
    const other = run.paused?.length ? outcomeState('paused', this._trans).sign : run.verdict ? VERDICT_SIGN : '';
    const sign = ending ? outcomeState(ending, this._trans).sign : other;
    const text = `${done}/${parts.length} ${sign}`.trim();
    const label = texts.join(', ');
    if (this._node.textContent !== text || this._node.title !== label) {
      this._node.textContent = text;
      this._node.title = label;
      this._node.setAttribute('aria-label', label);
      this._node.style.setProperty('--jdist-done', `${(100 * done) / Math.max(1, parts.length)}%`);
    }
    this._node.dataset.state = failed ? 'failed' : run.state;
  }

  private readonly _node = document.createElement('div');
  private _isDisposed = false;
}

/** The newest run in a cell's output. */
export function runOf(outputs: CodeCell['outputArea']['model']): IRunBundle | undefined {
  for (let i = outputs.length - 1; i >= 0; i--) {
    const run = outputs.get(i).data[MIME] as unknown as IRunBundle | undefined;
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
