/** The table of ranks: only the rows that are seen are drawn, so that a thousand of them cost no more than twenty. */

import { TranslationBundle } from '@jupyterlab/translation';
import { CommandToolbarButton, treeViewIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { ICluster, IRank } from '../api';
import { CommandIDs } from '../tokens';
import * as words from '../words';
import { Choice } from './choice';
import { columns, IColumn, Line, lines } from './lines';
import { openMenu } from './menu';
import { IContext, Section } from './section';
import { State } from './state';
import { useWindow } from './window';

/** Pixels that a row is high; as in style/panel.css. */
const HEIGHT = 24;
/** Pixels below which the table's words are fewer. */
const NARROW = 400;

export class RankTable extends Section {
  constructor(context: IContext) {
    super(context, 'ranks', context.trans.__('Ranks'));
    const { commands } = context;
    this.toolbar.addItem('interrupt', new CommandToolbarButton({ commands, id: CommandIDs.interrupt, label: '' }));
    this.toolbar.addItem('restart', new CommandToolbarButton({ commands, id: CommandIDs.restart, label: '' }));
  }

  protected render(): JSX.Element {
    const { clusters, choice, trans } = this.context;
    const cluster = clusters.current;
    if (!cluster?.ranks?.length) {
      return <p className="jdist-empty">{whyNone(cluster, trans)}</p>;
    }
    return <Table cluster={cluster} choice={choice} trans={trans} open={this._open} />;
  }

  /** The menu of what can be done with a rank, or with those chosen if it is one of them. */
  private _open = (rank: number, x: number, y: number): void => {
    const { choice, clusters, commands, trans } = this.context;
    if (!choice.has(rank)) {
      choice.choose([rank]);
    }
    openMenu(commands, { cluster: clusters.current?.name ?? '', ranks: choice.ranks }, { x, y }, trans);
  };
}

function whyNone(cluster: ICluster | undefined, trans: TranslationBundle): string {
  if (!cluster) {
    return trans.__('The ranks of a cluster are listed here. There is no cluster.');
  }
  if (cluster.starting) {
    return trans.__('%1 is starting: %2', cluster.name, cluster.starting);
  }
  switch (cluster.state) {
    case 'orphaned':
      return trans.__(
        'The controller of %1 is gone, so nothing is known of its ranks. They wait for another one: revive it, and every name is kept.',
        cluster.name
      );
    case 'foreign':
      return trans.__('%1 was started by another version of jdist, which alone can talk to it.', cluster.name);
    default:
      return cluster.reason || trans.__('Nothing is known of the ranks of %1 yet.', cluster.name);
  }
}

interface ITable {
  cluster: ICluster;
  choice: Choice;
  trans: TranslationBundle;
  open: (rank: number, x: number, y: number) => void;
}

function Table(props: ITable): JSX.Element {
  const { cluster, choice, trans } = props;
  const { view } = choice;
  const now = Date.now();
  const scroller = React.useRef<HTMLDivElement>(null);
  const [active, setActive] = React.useState('');
  const isFocusDue = React.useRef(false);
  const seen = useWindow(scroller, HEIGHT);
  const isNarrow = seen.width < NARROW;
  const shown = columns(cluster.ranks ?? [], view.isByNode, isNarrow, trans);
  const all = lines(cluster, view, shown, now);
  const { first, last } = seen.of(all.length);
  const at = Math.max(
    0,
    all.findIndex(each => each.key === active)
  );
  const template = `${shown.map(each => each.width).join(' ')} 28px`;
  const drawn = all.map((line, index) => ({ line, index })).slice(first, last);
  if (at < all.length && (at < first || at >= last)) {
    drawn.push({ line: all[at], index: at }); // the one that has the focus stays, wherever it was scrolled to
  }

  // At once, or the next key would come to nobody: the row that had the focus may be drawn no longer.
  React.useLayoutEffect(() => {
    if (isFocusDue.current) {
      isFocusDue.current = false;
      scroller.current?.querySelector<HTMLElement>(`[data-key="${active}"]`)?.focus();
    }
  });

  const go = (index: number, isExtending = false): void => {
    const to = Math.max(0, Math.min(all.length - 1, index));
    const line = all[to];
    isFocusDue.current = to !== at;
    setActive(line.key);
    reveal(scroller.current, to);
    if (isExtending && 'row' in line) {
      choice.choose([...choice.ranks, line.row.rank]);
    }
  };

  return (
    <div className="jdist-table">
      <Filter {...props} count={all.filter(each => 'row' in each).length} />
      <div
        ref={scroller}
        className="jdist-scroller"
        role="grid"
        aria-label={trans.__('Ranks of %1', cluster.name)}
        aria-multiselectable="true"
        aria-rowcount={all.length + 1}
        aria-colcount={shown.length + 1}
        style={{ '--jdist-columns': template } as React.CSSProperties}
        onKeyDown={event => onKey(event, { ...props, all, at, go })}
      >
        <Head {...props} shown={shown} />
        <div className="jdist-body" role="rowgroup" style={{ height: all.length * HEIGHT }}>
          {drawn.map(({ line, index }) => (
            <Row
              key={line.key}
              {...props}
              line={line}
              index={index}
              shown={shown}
              now={now}
              isNarrow={isNarrow}
              isActive={index === at}
              isChosen={'row' in line && choice.has(line.row.rank)}
              click={(event: React.MouseEvent) => {
                setActive(line.key);
                choose(event, line, { ...props, all, at });
              }}
            />
          ))}
        </div>
      </div>
    </div>
  );
}

function Filter(props: ITable & { count: number }): JSX.Element {
  const { cluster, choice, trans, count } = props;
  const all = cluster.ranks?.length ?? 0;
  const chosen = choice.ranks;
  const said = chosen.length
    ? trans.__('chosen: %1', words.written(chosen))
    : count < all
      ? trans.__('%1 of %2', count, all)
      : '';
  return (
    <div className="jdist-filter">
      <input
        className="jp-mod-styled"
        type="search"
        placeholder={trans.__('Filter: 0-3, running, a host…')}
        aria-label={trans.__('Filter ranks')}
        value={choice.view.filter}
        onChange={event => choice.show({ filter: event.target.value })}
      />
      <span role="status">{said}</span>
      <button
        className="jdist-act"
        title={trans.__('Group ranks by node')}
        aria-label={trans.__('Group ranks by node')}
        aria-pressed={choice.view.isByNode}
        onClick={() => choice.show({ isByNode: !choice.view.isByNode })}
      >
        <treeViewIcon.react tag="span" aria-hidden="true" />
      </button>
    </div>
  );
}

function Head(props: ITable & { shown: IColumn[] }): JSX.Element {
  const { choice, shown, trans } = props;
  const { sort, isDown } = choice.view;
  return (
    <div className="jdist-head" role="rowgroup">
      <div className="jdist-row" role="row" aria-rowindex={1}>
        {shown.map(({ key, label, isNumber }) => (
          <span
            key={key}
            role="columnheader"
            aria-sort={sort !== key ? 'none' : isDown ? 'descending' : 'ascending'}
            className={isNumber ? 'jdist-mod-number' : ''}
          >
            <button
              title={trans.__('Sort by %1', label)}
              onClick={() => choice.show({ sort: key, isDown: sort === key && !isDown })}
            >
              {label}
              <span aria-hidden="true">{sort !== key ? '' : isDown ? ' ↓' : ' ↑'}</span>
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

interface IRow extends ITable {
  line: Line;
  index: number;
  shown: IColumn[];
  now: number;
  isNarrow: boolean;
  isActive: boolean;
  isChosen: boolean;
  click: (event: React.MouseEvent) => void;
}

function Row(props: IRow): JSX.Element {
  const { line, index, shown, now, trans, isNarrow, isActive, isChosen, open } = props;
  const place = {
    role: 'row',
    'aria-rowindex': index + 2,
    'data-key': line.key,
    tabIndex: isActive ? 0 : -1,
    style: { top: index * HEIGHT },
    onClick: props.click
  };
  if (!('row' in line)) {
    const text = trans._n('node %2, %3: %1 rank', 'node %2, %3: %1 ranks', line.count, line.node, line.hostname);
    return (
      <div {...place} className="jdist-row jdist-mod-node">
        <span role="gridcell" aria-colspan={shown.length + 1}>
          {text}
        </span>
      </div>
    );
  }
  const { row } = line;
  const menu = trans.__('Actions for rank %1', row.rank);
  return (
    <div
      {...place}
      className={`jdist-row ${isChosen ? 'jdist-mod-chosen' : ''}`}
      aria-selected={isChosen}
      onContextMenu={event => {
        event.preventDefault();
        event.stopPropagation();
        open(row.rank, event.clientX, event.clientY);
      }}
    >
      {shown.map(({ key, text, isNumber }) => (
        <span
          key={key}
          role="gridcell"
          className={isNumber ? 'jdist-mod-number' : ''}
          title={hint(key, row, text(row, now), trans)}
        >
          {key === 'state' ? <State state={words.rankState(row, trans)} isWordless={isNarrow} /> : text(row, now)}
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
            open(row.rank, left, bottom);
          }}
        >
          ⋯
        </button>
      </span>
    </div>
  );
}

/** What a cell says when it is pointed at: the whole of it, with the line of the cell that runs, or why a rank died. */
function hint(key: string, row: IRank, text: string, trans: TranslationBundle): string {
  switch (key) {
    case 'doing':
      return [text, row.doing?.source, row.last_line, row.death].filter(each => each).join('\n');
    case 'device':
    case 'gpu':
    case 'gpumemory':
      return words.gpu(row, trans) || text;
    default:
      return text;
  }
}

/** Scrolls so far that the row is seen. */
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

interface IPlace extends ITable {
  all: Line[];
  at: number;
}

/** A click chooses a row; with Ctrl it is added or taken away, with Shift all from the last one on. */
function choose(event: React.MouseEvent, line: Line, { all, at, choice }: IPlace): void {
  if (!('row' in line)) {
    const node = line.node;
    choice.choose(all.flatMap(each => ('row' in each && each.row.node === node ? [each.row.rank] : [])));
  } else if (event.shiftKey) {
    const to = all.indexOf(line);
    const span = all.slice(Math.min(at, to), Math.max(at, to) + 1);
    choice.choose(span.flatMap(each => ('row' in each ? [each.row.rank] : [])));
  } else if (event.ctrlKey || event.metaKey) {
    choice.toggle(line.row.rank);
  } else {
    choice.choose(choice.has(line.row.rank) && choice.ranks.length === 1 ? [] : [line.row.rank]);
  }
}

function onKey(
  event: React.KeyboardEvent,
  place: IPlace & { go: (index: number, isExtending?: boolean) => void }
): void {
  const target = event.target as HTMLElement;
  if (!target.dataset.key) {
    return; // a button of the head
  }
  const { all, at, go, choice, open } = place;
  const page = Math.max(1, Math.floor(event.currentTarget.clientHeight / HEIGHT) - 2);
  const moves: Record<string, number> = {
    ArrowDown: at + 1,
    ArrowUp: at - 1,
    PageDown: at + page,
    PageUp: at - page,
    Home: 0,
    End: all.length - 1
  };
  const line = all[at];
  if (event.key in moves) {
    go(moves[event.key], event.shiftKey);
  } else if (event.key === ' ' && 'row' in line) {
    choice.toggle(line.row.rank);
  } else if (event.key === 'a' && (event.ctrlKey || event.metaKey)) {
    choice.choose(all.flatMap(each => ('row' in each ? [each.row.rank] : [])));
  } else if (event.key === 'Escape') {
    choice.choose([]);
  } else if ((event.key === 'Enter' || event.key === 'ContextMenu') && 'row' in line) {
    const { left, bottom } = target.getBoundingClientRect();
    open(line.row.rank, left, bottom);
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
}
