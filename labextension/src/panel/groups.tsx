/** The groups of a cluster: its mesh as a grid of ranks, and a list of groups. A click selects their ranks. */

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { ICluster, IRank } from '../api';
import { IMesh } from '../generated/server';
import { formatRanks, joinParts } from '../format';
import { rankState } from '../states';
import { IContext, Section } from './section';
import { Selection } from './selection';

export class Groups extends Section {
  constructor(context: IContext) {
    const { trans } = context;
    super(context, 'groups', trans.__('Groups'));
  }

  protected render(): JSX.Element {
    const { clusters, selection, trans } = this.context;
    const cluster = clusters.current;
    const groups = cluster ? named(cluster) : [];
    if (!cluster || (!groups.length && !cluster.mesh)) {
      return (
        <p className="jdist-empty">
          {trans.__(
            'Groups and meshes appear here. In a notebook: %dist mesh dp=2,tp=2 or %dist group evens 0,2; in a cell: dist.new_group([0, 2]).'
          )}
        </p>
      );
    }
    return (
      <div className="jdist-scroller">
        {cluster.mesh && <Mesh cluster={cluster} mesh={cluster.mesh} selection={selection} trans={trans} />}
        {groups.length > 0 && (
          <ul className="jdist-list" aria-label={trans.__('Groups of %1', cluster.name)}>
            {groups.map(group => (
              <Group key={`${group.name} ${group.ranks.join()}`} {...group} selection={selection} trans={trans} />
            ))}
          </ul>
        )}
      </div>
    );
  }
}

interface IGroupItem {
  name: string;
  ranks: number[];
  note: string;
  isGone: boolean;
}

/** The groups made by jdist, then those that cells have made with torch.distributed. */
function named(cluster: ICluster): IGroupItem[] {
  const own = (cluster.groups ?? []).map(each => ({ ...each, note: '', isGone: false }));
  const made = (cluster.cell_groups ?? []).map(each => ({
    name: each.name,
    ranks: each.ranks,
    note: each.backend ?? '',
    isGone: each.is_gone
  }));
  return [...own, ...made];
}

interface ISelecting {
  selection: Selection;
  trans: TranslationBundle;
}

function Group(props: IGroupItem & ISelecting): JSX.Element {
  const { name, ranks, note, isGone, selection, trans } = props;
  const isSelected = isSame(selection.ranks, ranks);
  const about = [trans.__('ranks %1', formatRanks(ranks)), note, isGone ? trans.__('ended with a rank') : ''];
  return (
    <li className={isSelected ? 'jdist-item jdist-mod-current' : 'jdist-item'}>
      <button
        className="jdist-choose"
        aria-pressed={isSelected}
        onClick={() => selection.select(isSelected ? [] : ranks)}
      >
        <span className="jdist-name">{name || trans.__('(made in a cell)')}</span>
        <span className="jdist-size">{joinParts(...about)}</span>
      </button>
    </li>
  );
}

/** A mesh: its last dimension is across, the others are down. The heading of a row or a column selects all of it. */
function Mesh(props: ISelecting & { cluster: ICluster; mesh: IMesh }): JSX.Element {
  const { cluster, mesh, selection, trans } = props;
  const { names, sizes } = mesh;
  const across = sizes[sizes.length - 1];
  const total = sizes.reduce((product, each) => product * each, 1);
  const rows = Array.from({ length: total / across }, (_, row) => row * across);
  const ranks = new Map((cluster.ranks ?? []).map(each => [each.rank, each]));
  const last = names[names.length - 1];
  const shape = names.map((name, i) => `${name}=${sizes[i]}`).join(', ');
  const head = (label: string, slice: number[]): JSX.Element => (
    <button
      className="jdist-slice"
      aria-pressed={isSame(selection.ranks, slice)}
      title={trans.__('Select ranks %1', formatRanks(slice))}
      onClick={() => selection.select(isSame(selection.ranks, slice) ? [] : slice)}
    >
      {label}
    </button>
  );
  return (
    <table className="jdist-mesh" onKeyDown={onKey}>
      <caption>{trans.__('mesh %1', shape)}</caption>
      <thead>
        <tr>
          {names.length > 1 && <td />}
          {Array.from({ length: across }, (_, i) => (
            <th key={i} scope="col">
              {head(
                `${last}=${i}`,
                rows.map(first => first + i)
              )}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map(first => (
          <tr key={first}>
            {names.length > 1 && <th scope="row">{head(coordinates(first, names, sizes), span(first, across))}</th>}
            {span(first, across).map(rank => (
              <td key={rank}>
                <MeshRank rank={rank} row={ranks.get(rank)} isFirst={rank === 0} selection={selection} trans={trans} />
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function MeshRank(props: ISelecting & { rank: number; row?: IRank; isFirst: boolean }): JSX.Element {
  const { rank, row, isFirst, selection, trans } = props;
  const state = rankState(row, trans);
  const label = trans.__('rank %1, %2', rank, state.label);
  return (
    <button
      className={`jdist-place jdist-mod-${state.tone}`}
      data-rank={rank}
      tabIndex={isFirst ? 0 : -1}
      aria-label={label}
      title={label}
      aria-pressed={selection.has(rank)}
      onClick={event => (event.ctrlKey || event.metaKey ? selection.toggle(rank) : selection.select([rank]))}
    >
      {rank}
      <span className="jdist-sign" aria-hidden="true">
        {state.tone === 'idle' ? '' : state.sign}
      </span>
    </button>
  );
}

/** The arrow keys move from rank to rank; Tab leaves the mesh. */
function onKey(event: React.KeyboardEvent<HTMLTableElement>): void {
  const from = (event.target as HTMLElement).dataset.rank;
  const across = event.currentTarget.tBodies[0].rows[0].querySelectorAll('td').length;
  const moves: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across };
  if (from === undefined || !(event.key in moves)) {
    return;
  }
  const to = Number(from) + moves[event.key];
  event.currentTarget.querySelector<HTMLElement>(`[data-rank="${to}"]`)?.focus();
  event.preventDefault();
}

function span(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => first + i);
}

/** `pp=0, dp=1`: the coordinates of the row that begins with this rank, in all dimensions but the last. */
function coordinates(first: number, names: string[], sizes: number[]): string {
  let rest = first / sizes[sizes.length - 1];
  const parts: string[] = [];
  for (let i = sizes.length - 2; i >= 0; i--) {
    parts.unshift(`${names[i]}=${rest % sizes[i]}`);
    rest = Math.floor(rest / sizes[i]);
  }
  return parts.join(', ');
}

function isSame(a: number[], b: number[]): boolean {
  return a.length === b.length && b.every(each => a.includes(each));
}
