/** The progress of nodes that are being added: what is waited for, and the line to run where the user starts them. */

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { IAddingRow } from '../generated/server';
import { Waiting } from '../start/waiting';
import { IClusters } from '../tokens';

/** `gone`: the cluster is, or the server has been started again. */
export type AddEnd = 'added' | 'failed' | 'gone';

export class AddProgress extends Waiting<AddEnd> {
  constructor(
    clusters: IClusters,
    name: string,
    private readonly _number: number,
    trans: TranslationBundle
  ) {
    super(clusters, name, trans);
  }

  get end(): AddEnd | '' {
    const { adding } = this;
    if (!adding) {
      return this._wasKnown || !this.clusters.get(this.name) ? 'gone' : '';
    }
    this._wasKnown = true;
    return adding.state === 'adding' ? '' : adding.state;
  }

  /** What the server says of it. */
  get adding(): IAddingRow | undefined {
    const adding = this.clusters.get(this.name)?.adding;
    return adding?.number === this._number ? adding : undefined;
  }

  /** Each node has a line of its own. */
  protected get lineNumber(): number {
    return this.adding?.done ?? -1;
  }

  protected text(): string {
    return this.adding?.text || this.trans.__('The node is being started…');
  }

  protected numbers(waited: string): JSX.Element {
    const { trans } = this;
    const { done, count } = this.adding ?? { done: 0, count: 1 };
    const hasJoined = trans._n(
      '%2 of %1 node has joined, after %3',
      '%2 of %1 nodes have joined, after %3',
      count,
      done,
      waited
    );
    return (
      <>
        <progress aria-label={trans.__('Nodes that have joined')} max={count} value={done} />
        <p className="jdist-note">{hasJoined}</p>
      </>
    );
  }

  private _wasKnown = false;
}
