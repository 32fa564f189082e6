/** Waiting for a start: who is missing, as the server tells it, until the cluster stands or its start has failed. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';
import { Message } from '@lumino/messaging';
import * as React from 'react';

import { IClusters } from '../tokens';
import * as words from '../words';

/** How a start has ended; "" while it is under way. */
export type End = '' | 'stands' | 'failed' | 'gone';

export class Waiting extends ReactWidget {
  constructor(
    private readonly _clusters: IClusters,
    readonly name: string,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-waiting');
    _clusters.changed.connect(this._onChanged, this);
  }

  /** The start is over. */
  get ended(): ISignal<this, End> {
    return this._ended;
  }

  /** How it is now. */
  get end(): End {
    const cluster = this._clusters.get(this.name);
    if (!cluster) {
      return this._isSeen ? 'gone' : '';
    }
    this._isSeen = true;
    if (cluster.starting === null) {
      return 'failed';
    }
    return cluster.starting === undefined && cluster.state === 'ready' ? 'stands' : '';
  }

  dispose(): void {
    window.clearInterval(this._clock);
    Signal.clearData(this);
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._clock = window.setInterval(() => this.update(), 1000);
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    const cluster = this._clusters.get(this.name);
    const waited = words.duration((Date.now() - this._began) / 1000);
    const nodes = cluster?.nodes ?? [];
    return (
      <>
        <p role="status">{cluster?.starting || trans.__('The launcher is at work…')}</p>
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

  private _onChanged(): void {
    this.update();
    const end = this.end;
    if (end && !this._isOver) {
      this._isOver = true;
      this._ended.emit(end);
    }
  }

  private _clock = 0;
  private _isSeen = false;
  private _isOver = false;
  private _began = Date.now();
  private _ended = new Signal<this, End>(this);
}
