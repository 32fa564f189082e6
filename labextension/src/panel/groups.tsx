/** The groups of a cluster: a mesh as a grid of ranks, and named groups; a click chooses their ranks in the table. */

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { ICluster, IMesh, IRank } from '../api';
import * as words from '../words';
import { Choice } from './choice';
import { IContext, Section } from './section';

export class Groups extends Section {
  constructor(context: IContext) {
    super(context, 'groups', context.trans.__('Groups'));
  }

  protected render(): JSX.Element {
    const { clusters, choice, trans } = this.context;
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
        {cluster.mesh && <Mesh cluster={cluster} mesh={cluster.mesh} choice={choice} trans={trans} />}
        {groups.length > 0 && (
          <ul className="jdist-list" aria-label={trans.__('Groups of %1', cluster.name)}>
            {groups.map(group => (
              <Group key={`${group.name} ${group.ranks.join()}`} {...group} choice={choice} trans={trans} />
            ))}
          </ul>
        )}
      </div>
    );
  }
}

interface IShown {
  name: string;
  ranks: number[];
  note: string;
  isGone: boolean;
}

/** Those that have a name, and those that cells have made. */
function named(cluster: ICluster): IShown[] {
  const own = (cluster.groups ?? []).map(each => ({ ...each, note: '', isGone: false }));
  const made = (cluster.cell_groups ?? []).map(each => ({
    name: each.name,
    ranks: each.ranks,
    note: each.backend,
    isGone: each.is_gone
  }));
  return [...own, ...made];
}

interface IChoosing {
  choice: Choice;
  trans: TranslationBundle;
}

function Group(props: IShown & IChoosing): JSX.Element {
  const { name, ranks, note, isGone, choice, trans } = props;
  const isChosen = isSame(choice.ranks, ranks);
  const about = [trans.__('ranks %1', words.written(ranks)), note, isGone ? trans.__('gone with a rank') : ''];
  return (
    <li className={isChosen ? 'jdist-item jdist-mod-current' : 'jdist-item'}>
      <button className="jdist-choose" aria-pressed={isChosen} onClick={() => choice.choose(isChosen ? [] : ranks)}>
        <span className="jdist-name">{name || trans.__('(made in a cell)')}</span>
        <span className="jdist-size">{about.filter(each => each).join(' · ')}</span>
      </button>
    </li>
  );
}

/** The mesh: its last dimension goes across, the others down; the head of a row or column chooses all of it. */
function Mesh(props: IChoosing & { cluster: ICluster; mesh: IMesh }): JSX.Element {
  const { cluster, mesh, choice, trans } = props;
  const { names, sizes } = mesh;
  const across = sizes[sizes.length - 1];
  const total = sizes.reduce((product, each) => product * each, 1);
  const rows = Array.from({ length: total / across }, (_, row) => row * across);
  const ranks = new Map((cluster.ranks ?? []).map(each => [each.rank, each]));
  const last = names[names.length - 1];
  const shape = names.map((name, i) => `${name}=${sizes[i]}`).join(', ');
  const head = (label: string, chosen: number[]): JSX.Element => (
    <button
      className="jdist-slice"
      aria-pressed={isSame(choice.ranks, chosen)}
      title={trans.__('Choose ranks %1', words.written(chosen))}
      onClick={() => choice.choose(isSame(choice.ranks, chosen) ? [] : chosen)}
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
            {names.length > 1 && <th scope="row">{head(where(first, names, sizes), span(first, across))}</th>}
            {span(first, across).map(rank => (
              <td key={rank}>
                <Place rank={rank} row={ranks.get(rank)} isFirst={rank === 0} choice={choice} trans={trans} />
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Place(props: IChoosing & { rank: number; row?: IRank; isFirst: boolean }): JSX.Element {
  const { rank, row, isFirst, choice, trans } = props;
  const state = row ? words.rankState(row, trans) : { word: trans.__('unknown'), mood: 'coming' as const };
  const label = trans.__('rank %1, %2', rank, state.word);
  return (
    <button
      className={`jdist-place jdist-mod-${state.mood}`}
      data-rank={rank}
      tabIndex={isFirst ? 0 : -1}
      aria-label={label}
      title={label}
      aria-pressed={choice.has(rank)}
      onClick={event => (event.ctrlKey || event.metaKey ? choice.toggle(rank) : choice.choose([rank]))}
    >
      {rank}
      <span className="jdist-sign" aria-hidden="true">
        {state.mood === 'idle' ? '' : words.sign(state.mood)}
      </span>
    </button>
  );
}

/** Arrows go from rank to rank, so that Tab need not. */
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

/** "dp=1, pp=0": where the row that begins with this rank is, in all dimensions but the last. */
function where(first: number, names: string[], sizes: number[]): string {
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
