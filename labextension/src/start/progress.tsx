/** The progress of a start: which nodes and ranks are missing, until the cluster is ready or its start has failed. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';
import { Message } from '@lumino/messaging';
import * as React from 'react';

import { formatWholeSeconds } from '../format';
import { IClusters } from '../tokens';
import { IInstructions, JoinLine } from './joinline';

/** How a start has ended; empty while it is in progress. */
export type StartEnd = '' | 'ready' | 'failed' | 'gone';

export class StartProgress extends ReactWidget {
  constructor(
    private readonly _clusters: IClusters,
    readonly name: string,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-startprogress');
    _clusters.changed.connect(this._onChanged, this);
  }

  /** The start has ended. */
  get ended(): ISignal<this, StartEnd> {
    return this._ended;
  }

  /** How it has ended by now. */
  get end(): StartEnd {
    const cluster = this._clusters.get(this.name);
    if (!cluster) {
      return this._wasKnown ? 'gone' : '';
    }
    this._wasKnown = true;
    if (cluster.starting === null) {
      return 'failed';
    }
    return cluster.starting === undefined && cluster.state === 'ready' ? 'ready' : '';
  }

  dispose(): void {
    window.clearInterval(this._clock);
    Signal.clearData(this);
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    void this._askForInstructions();
    this._clock = window.setInterval(() => this.update(), 1000);
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    const cluster = this._clusters.get(this.name);
    const waited = formatWholeSeconds((Date.now() - this._startedAt) / 1000);
    const nodes = cluster?.nodes ?? [];
    return (
      <>
        <p role="status" tabIndex={-1}>
          {cluster?.starting || trans.__('The launcher is working…')}
        </p>
        {this._instructions ? <JoinLine {...this._instructions} trans={trans} /> : null}
        {nodes.length > 1 && (
          <ul aria-label={trans.__('Nodes')}>
            {nodes.map(each => (
              <li key={each.node}>
                {each.is_here
                  ? trans.__('✓ node %1 on %2', each.node, each.hostname)
                  : trans.__('… node %1 is missing', each.node)}
              </li>
            ))}
          </ul>
        )}
        <progress aria-label={trans.__('Ranks up')} max={cluster?.world_size || 1} value={cluster?.ready ?? 0} />
        <p className="jdist-note">
          {cluster?.world_size
            ? trans.__('%1 of %2 ranks up, after %3', cluster.ready ?? 0, cluster.world_size, waited)
            : trans.__('waiting for %1', waited)}
        </p>
      </>
    );
  }

  /** Asks for what the user has to run on the nodes, once. */
  private async _askForInstructions(): Promise<void> {
    if (this._hasAsked || !this._clusters.get(this.name)?.has_instructions) {
      return;
    }
    this._hasAsked = true;
    try {
      this._instructions = await this._clusters.api.instructions(this.name);
      this.update();
    } catch (error) {
      console.warn(`jdist: ${this.name}:`, error); // the start may have ended
    }
  }

  private _onChanged(): void {
    this.update();
    void this._askForInstructions();
    const end = this.end;
    if (end && !this._hasEnded) {
      this._hasEnded = true;
      this._ended.emit(end);
    }
  }

  private _clock = 0;
  private _hasAsked = false;
  private _instructions: IInstructions | null = null;
  private _wasKnown = false;
  private _hasEnded = false;
  private _startedAt = Date.now();
  private _ended = new Signal<this, StartEnd>(this);
}
