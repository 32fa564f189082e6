/** The field above the table: the filter, how many ranks it leaves or which are selected, and grouping by node. */

import { TranslationBundle } from '@jupyterlab/translation';
import { treeViewIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { ICluster } from '../../api';
import { formatRanks } from '../../format';
import { Selection } from '../selection';
import { IFilter } from './filter';

/** The id of what the filter does not understand. */
const PROBLEM = 'jdist-filter-problem';

interface IFilterProps {
  cluster: ICluster;
  selection: Selection;
  trans: TranslationBundle;
  filter: IFilter;
  /** How many ranks are shown. */
  count: number;
}

export function Filter(props: IFilterProps): JSX.Element {
  const { cluster, selection, trans, filter, count } = props;
  const all = cluster.ranks?.length ?? 0;
  const status = selection.ranks.length
    ? trans.__('selected: %1', formatRanks(selection.ranks))
    : count < all
      ? trans.__('%1 of %2', count, all)
      : '';
  return (
    <div className="jdist-filter">
      <input
        className="jp-mod-styled"
        type="search"
        placeholder={trans.__('Filter: 0-3, !2, running…')}
        title={trans.__('Ranks as for -r of a cell (0-3,7, !2, node=1, dp=0, a group), a state, a host, or a word')}
        aria-label={trans.__('Filter ranks')}
        aria-invalid={!!filter.problem}
        aria-describedby={PROBLEM}
        value={selection.view.filter}
        onChange={event => selection.changeView({ filter: event.target.value })}
      />
      <span role="status">{status}</span>
      <button
        className="jdist-act"
        title={trans.__('Group ranks by node')}
        aria-label={trans.__('Group ranks by node')}
        aria-pressed={selection.view.isByNode}
        onClick={() => selection.changeView({ isByNode: !selection.view.isByNode })}
      >
        <treeViewIcon.react tag="span" aria-hidden="true" />
      </button>
      <p id={PROBLEM} className="jdist-problem" role="alert">
        {filter.problem}
      </p>
    </div>
  );
}
