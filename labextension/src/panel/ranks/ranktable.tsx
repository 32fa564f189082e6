/** The table of ranks. It draws only the rows that can be seen, so that it is as fast with a thousand ranks as with ten. */

import { TranslationBundle } from '@jupyterlab/translation';
import { CommandToolbarButton } from '@jupyterlab/ui-components';
import * as React from 'react';

import { ICluster } from '../../api';
import { asOf, rankState, staleness } from '../../states';
import { CommandIDs } from '../../tokens';
import { openMenu } from '../menu';
import { parseFilter } from './filter';
import { Filter } from './filterfield';
import { columns, fittingColumns, IColumn, ranksOfRows, TableRow, tableRows } from './rows';
import { tooltip } from './tooltip';
import { IContext, Section, State } from '../section';
import { Selection } from '../selection';
import { useVisibleRows } from './visiblerows';

/** The height of a row in pixels, as in style/panel.css. */
const HEIGHT = 24;

export class RankTable extends Section {
  constructor(context: IContext) {
    const { commands, trans } = context;
    super(context, 'ranks', trans.__('Ranks'));
    this.toolbar.addItem('interrupt', new CommandToolbarButton({ commands, id: CommandIDs.interrupt, label: '' }));
    this.toolbar.addItem('restart', new CommandToolbarButton({ commands, id: CommandIDs.restart, label: '' }));
    this.toolbar.addItem('pause', new CommandToolbarButton({ commands, id: CommandIDs.pause, label: '' }));
  }

  protected render(): JSX.Element {
    const { clusters, selection, trans } = this.context;
    const cluster = clusters.current;
    if (!cluster?.ranks?.length) {
      return <p className="jdist-empty">{whyEmpty(cluster, trans)}</p>;
    }
    const [now, lostAt] = [Date.now(), clusters.lostAt];
    return (
      <Table
        cluster={cluster}
        selection={selection}
        trans={trans}
        openMenu={this._openMenu}
        now={asOf(cluster, lostAt, now)}
        age={staleness(cluster, lostAt, now, trans)}
      />
    );
  }

  /** Opens the menu of the selected ranks; a rank that is not selected becomes the only one. */
  private _openMenu = (rank: number, x: number, y: number): void => {
    const { selection, clusters, commands, trans } = this.context;
    if (!selection.has(rank)) {
      selection.select([rank]);
    }
    openMenu(commands, { cluster: clusters.current?.name ?? '', ranks: selection.ranks }, { x, y }, trans);
  };
}

function whyEmpty(cluster: ICluster | undefined, trans: TranslationBundle): string {
  if (!cluster) {
    return trans.__('The ranks of a cluster are listed here. There is no cluster yet.');
  }
  if (cluster.starting) {
    return trans.__('%1 is starting: %2', cluster.name, cluster.starting);
  }
  switch (cluster.state) {
    case 'orphaned':
      return trans.__(
        'The controller of %1 has died, so the state of its ranks is unknown. They keep all variables: revive the cluster to use it again.',
        cluster.name
      );
    case 'foreign':
      return trans.__('%1 was started by another version of jdist, and only that version can use it.', cluster.name);
    default:
      return cluster.reason || trans.__('Nothing is known about the ranks of %1 yet.', cluster.name);
  }
}

interface ITableProps {
  cluster: ICluster;
  selection: Selection;
  trans: TranslationBundle;
  /** When the ranks were as described, and how long ago that was; empty if it is now. */
  now: number;
  age: string;
  openMenu: (rank: number, x: number, y: number) => void;
}

function Table(props: ITableProps): JSX.Element {
  const { cluster, selection, trans, now, age } = props;
  const { view } = selection;
  const scroller = React.useRef<HTMLDivElement>(null);
  const [activeKey, setActiveKey] = React.useState('');
  const isFocusDue = React.useRef(false);
  const visible = useVisibleRows(scroller, HEIGHT);
  const all = columns(cluster.ranks ?? [], view.isByNode, trans);
  const shown = fittingColumns(all, visible.width, trans);
  const filter = parseFilter(view.filter, cluster, trans);
  const rows = tableRows(cluster, view, filter, all, now);
  const [first, end] = visible.range(rows.length);
  const active = Math.max(
    0,
    rows.findIndex(each => each.key === activeKey)
  );
  const template = `${shown.map(each => each.width).join(' ')} 28px`;
  const drawn = rows.map((row, index) => ({ row, index })).slice(first, end);
  if (active < rows.length && (active < first || active >= end)) {
    drawn.push({ row: rows[active], index: active }); // it may have the focus, wherever the table was scrolled to
  }

  // Before the browser handles the next key: the row that had the focus may no longer be drawn.
  React.useLayoutEffect(() => {
    if (isFocusDue.current) {
      isFocusDue.current = false;
      scroller.current?.querySelector<HTMLElement>(`[data-key="${activeKey}"]`)?.focus();
    }
  });

  const goTo = (index: number, isExtending: boolean): void => {
    const to = Math.max(0, Math.min(rows.length - 1, index));
    const row = rows[to];
    isFocusDue.current = to !== active;
    setActiveKey(row.key);
    reveal(scroller.current, to);
    if (isExtending && 'rank' in row) {
      selection.select([...selection.ranks, row.rank.rank]);
    }
  };

  return (
    <div className="jdist-table">
      {age ? <p className="jdist-stale">{age}</p> : null}
      <Filter cluster={cluster} selection={selection} trans={trans} filter={filter} count={ranksOfRows(rows).length} />
      <div
        ref={scroller}
        className="jdist-scroller"
        role="grid"
        aria-label={trans.__('Ranks of %1', cluster.name)}
        aria-multiselectable="true"
        aria-rowcount={rows.length + 1}
        aria-colcount={shown.length + 1}
        style={{ '--jdist-columns': template } as React.CSSProperties}
        onKeyDown={event => onKey(event, { ...props, rows, active, goTo })}
      >
        <Head {...props} shown={shown} />
        <div className="jdist-body" role="rowgroup" style={{ height: rows.length * HEIGHT }}>
          {drawn.map(({ row, index }) => (
            <Row
              key={row.key}
              {...props}
              row={row}
              index={index}
              shown={shown}
              now={now}
              all={all}
              isActive={index === active}
              isSelected={'rank' in row && selection.has(row.rank.rank)}
              onClick={event => {
                setActiveKey(row.key);
                onClick(event, row, { ...props, rows, active });
              }}
            />
          ))}
        </div>
      </div>
    </div>
  );
}

function Head(props: ITableProps & { shown: IColumn[] }): JSX.Element {
  const { selection, shown, trans } = props;
  const { sort, isDescending } = selection.view;
  return (
    <div className="jdist-head" role="rowgroup">
      <div className="jdist-row" role="row" aria-rowindex={1}>
        {shown.map(({ key, label, isNumber }) => (
          <span
            key={key}
            role="columnheader"
            aria-sort={sort !== key ? 'none' : isDescending ? 'descending' : 'ascending'}
            className={isNumber ? 'jdist-mod-number' : ''}
          >
            <button
              title={trans.__('Sort by %1', label)}
              onClick={() => selection.changeView({ sort: key, isDescending: sort === key && !isDescending })}
            >
              {label}
              <span aria-hidden="true">{sort !== key ? '' : isDescending ? ' ↓' : ' ↑'}</span>
            </button>
          </span>
        ))}
        <span role="columnheader">
          <span className="jdist-unseen">{trans.__('Actions')}</span>
        </span>
      </div>
    </div>
  );
}

interface IRowProps extends ITableProps {
  row: TableRow;
  index: number;
  shown: IColumn[];
  now: number;
  all: IColumn[];
  isActive: boolean;
  isSelected: boolean;
  onClick: (event: React.MouseEvent) => void;
}

function Row(props: IRowProps): JSX.Element {
  const { row, index, shown, now, trans, all, isActive, isSelected, onClick, openMenu } = props;
  const common = {
    role: 'row',
    'aria-rowindex': index + 2,
    'data-key': row.key,
    tabIndex: isActive ? 0 : -1,
    style: { top: index * HEIGHT },
    onClick
  };
  if (!('rank' in row)) {
    const text = trans._n('node %2, %3: %1 rank', 'node %2, %3: %1 ranks', row.count, row.node, row.hostname);
    return (
      <div {...common} className="jdist-row jdist-mod-node">
        <span role="gridcell" aria-colspan={shown.length + 1}>
          {text}
        </span>
      </div>
    );
  }
  const { rank } = row;
  const menu = trans.__('Actions for rank %1', rank.rank);
  return (
    <div
      {...common}
      className={`jdist-row ${isSelected ? 'jdist-mod-selected' : ''}`}
      aria-selected={isSelected}
      onContextMenu={event => {
        event.preventDefault();
        event.stopPropagation();
        openMenu(rank.rank, event.clientX, event.clientY);
      }}
    >
      {shown.map(({ key, text, isNumber }) => (
        <span
          key={key}
          role="gridcell"
          className={isNumber ? 'jdist-mod-number' : ''}
          title={tooltip(key, rank, text(rank, now), now, trans, all.length > shown.length ? all : [])}
        >
          {key === 'state' ? <State state={{ ...rankState(rank, trans), label: text(rank, now) }} /> : text(rank, now)}
        </span>
      ))}
      <span role="gridcell">
        <button
          className="jdist-more"
          tabIndex={-1}
          title={menu}
          aria-label={menu}
          aria-haspopup="menu"
          onClick={event => {
            event.stopPropagation();
            const { left, bottom } = event.currentTarget.getBoundingClientRect();
            openMenu(rank.rank, left, bottom);
          }}
        >
          ⋯
        </button>
      </span>
    </div>
  );
}

/** Scrolls as little as possible, so that the row can be seen. */
function reveal(scroller: HTMLElement | null, index: number): void {
  if (!scroller) {
    return;
  }
  const top = index * HEIGHT;
  const seen = scroller.clientHeight - HEIGHT; // the head covers one row
  if (top < scroller.scrollTop) {
    scroller.scrollTop = top;
  } else if (top + HEIGHT > scroller.scrollTop + seen) {
    scroller.scrollTop = top + HEIGHT - seen;
  }
}

interface IRows extends ITableProps {
  rows: TableRow[];
  active: number;
}

/** A click selects one row, or all ranks of a node; with Ctrl it adds or removes a rank, with Shift it adds a range. */
function onClick(event: React.MouseEvent, row: TableRow, { rows, active, selection }: IRows): void {
  if (!('rank' in row)) {
    selection.select(ranksOfRows(rows.filter(each => 'rank' in each && each.rank.node === row.node)));
  } else if (event.shiftKey) {
    const to = rows.indexOf(row);
    selection.select(ranksOfRows(rows.slice(Math.min(active, to), Math.max(active, to) + 1)));
  } else if (event.ctrlKey || event.metaKey) {
    selection.toggle(row.rank.rank);
  } else {
    const isOnly = selection.has(row.rank.rank) && selection.ranks.length === 1;
    selection.select(isOnly ? [] : [row.rank.rank]);
  }
}

function onKey(
  event: React.KeyboardEvent,
  place: IRows & { goTo: (index: number, isExtending: boolean) => void }
): void {
  const target = event.target as HTMLElement;
  if (!target.dataset.key) {
    return; // a button has the focus, not a row
  }
  const { rows, active, goTo, selection, openMenu } = place;
  const page = Math.max(1, Math.floor(event.currentTarget.clientHeight / HEIGHT) - 2);
  const moves: Record<string, number> = {
    ArrowDown: active + 1,
    ArrowUp: active - 1,
    PageDown: active + page,
    PageUp: active - page,
    Home: 0,
    End: rows.length - 1
  };
  const row = rows[active];
  if (event.key in moves) {
    goTo(moves[event.key], event.shiftKey);
  } else if (event.key === ' ' && 'rank' in row) {
    selection.toggle(row.rank.rank);
  } else if (event.key === 'a' && (event.ctrlKey || event.metaKey)) {
    selection.select(ranksOfRows(rows));
  } else if (event.key === 'Escape') {
    selection.select([]);
  } else if ((event.key === 'Enter' || event.key === 'ContextMenu') && 'rank' in row) {
    const { left, bottom } = target.getBoundingClientRect();
    openMenu(row.rank.rank, left, bottom);
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
}
