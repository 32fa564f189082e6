/** The item of the status bar: `8/8 ranks · gloo · idle` of the cluster that the panel shows; a click opens the panel. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { clusterLine, clusterState } from '../states';
import { IClusters } from '../tokens';

export class StatusItem extends ReactWidget {
  constructor(
    private readonly _clusters: IClusters,
    private readonly _open: () => void,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-mod-highlighted');
    this.addClass('jdist-status');
    this._clusters.changed.connect(() => this.update(), this);
  }

  protected render(): JSX.Element | null {
    const cluster = this._clusters.current;
    if (!cluster) {
      return null;
    }
    const trans = this._trans;
    const { sign, tone } = clusterState(cluster, trans);
    const text = clusterLine(cluster, trans);
    const about = trans.__('Cluster %1: %2. Opens the ranks panel.', cluster.name, text);
    return (
      <button className={`jdist-mod-${tone}`} title={about} aria-label={about} onClick={this._open}>
        <span className="jdist-sign" aria-hidden="true">
          {sign}
        </span>
        {text}
      </button>
    );
  }
}
