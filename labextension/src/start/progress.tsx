/** The progress of a start: which nodes and ranks are missing, until the cluster is ready or its start has failed. */

import * as React from 'react';

import { Waiting } from './waiting';

export type StartEnd = 'ready' | 'failed' | 'gone';

export class StartProgress extends Waiting<StartEnd> {
  get end(): StartEnd | '' {
    const cluster = this.clusters.get(this.name);
    if (!cluster) {
      return this._wasKnown ? 'gone' : '';
    }
    this._wasKnown = true;
    if (cluster.starting === null) {
      return 'failed';
    }
    return cluster.starting === undefined && cluster.state === 'ready' ? 'ready' : '';
  }

  /** One line is for all nodes. */
  protected readonly lineNumber = 0;

  protected text(): string {
    return this.clusters.get(this.name)?.starting || this.trans.__('The launcher is working…');
  }

  protected numbers(waited: string): JSX.Element {
    const { trans } = this;
    const { nodes = [], world_size = 0, ready = 0 } = this.clusters.get(this.name) ?? {};
    return (
      <>
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
        <progress aria-label={trans.__('Ranks up')} max={world_size || 1} value={ready} />
        <p className="jdist-note">
          {world_size
            ? trans.__('%1 of %2 ranks up, after %3', ready, world_size, waited)
            : trans.__('waiting for %1', waited)}
        </p>
      </>
    );
  }

  private _wasKnown = false;
}
