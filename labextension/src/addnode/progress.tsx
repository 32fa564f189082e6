/** The progress of nodes that are being added: what is waited for, and the line to run where the user starts them. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { ISignal, Signal } from '@lumino/signaling';
import * as React from 'react';

import { formatWholeSeconds } from '../format';
import { IAdding } from '../launch';
import { IInstructions, JoinLine } from '../start/joinline';
import { IClusters } from '../tokens';

/** How it has ended; empty while it goes on. `gone`: the cluster is, or the server has been started again. */
export type AddEnd = '' | 'added' | 'failed' | 'gone';

export class AddProgress extends ReactWidget {
  constructor(
    private readonly _clusters: IClusters,
    private readonly _name: string,
    private readonly _number: number,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-startprogress');
    _clusters.changed.connect(this._onChanged, this);
  }

  get ended(): ISignal<this, AddEnd> {
    return this._ended;
  }

  /** How it has ended by now. */
  get end(): AddEnd {
    const adding = this.adding;
    if (!adding) {
      return this._wasKnown || !this._clusters.get(this._name) ? 'gone' : '';
    }
    this._wasKnown = true;
    return adding.state === 'adding' ? '' : adding.state;
  }

  /** What the server says of it. */
  get adding(): IAdding | undefined {
    const adding = this._clusters.get(this._name)?.adding;
    return adding?.number === this._number ? adding : undefined;
  }

  dispose(): void {
    window.clearInterval(this._clock);
    Signal.clearData(this);
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._clock = window.setInterval(() => this.update(), 1000);
    this._onChanged();
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    const { text, done, count } = this.adding ?? { text: '', done: 0, count: 1 };
    const waited = formatWholeSeconds((Date.now() - this._startedAt) / 1000);
    const hasJoined = trans._n(
      '%2 of %1 node has joined, after %3',
      '%2 of %1 nodes have joined, after %3',
      count,
      done,
      waited
    );
    return (
      <>
        <p role="status" tabIndex={-1}>
          {text || trans.__('The node is being started…')}
        </p>
        {this._instructions ? <JoinLine {...this._instructions} trans={trans} /> : null}
        <progress aria-label={trans.__('Nodes that have joined')} max={count} value={done} />
        <p className="jdist-note">{hasJoined}</p>
      </>
    );
  }

  /** Asks for what the user has to run on the next node; each has a line of its own. */
  private async _askForInstructions(): Promise<void> {
    const { adding } = this;
    if (!adding || !this._clusters.get(this._name)?.has_instructions) {
      this._instructions = null;
      return;
    }
    if (this._askedFor === adding.done) {
      return;
    }
    this._askedFor = adding.done;
    try {
      this._instructions = await this._clusters.api.instructions(this._name);
      this.update();
    } catch (error) {
      console.warn(`jdist: ${this._name}:`, error); // the node may have joined
    }
  }

  private _onChanged(): void {
    void this._askForInstructions();
    this.update();
    const end = this.end;
    if (end && !this._hasEnded) {
      this._hasEnded = true;
      this._ended.emit(end);
    }
  }

  private _clock = 0;
  /** The number of nodes that had joined when the line was asked for. */
  private _askedFor = -1;
  private _instructions: IInstructions | null = null;
  private _wasKnown = false;
  private _hasEnded = false;
  private _startedAt = Date.now();
  private _ended = new Signal<this, AddEnd>(this);
}
