/** The rows and columns of the table of ranks: filtered, sorted and grouped. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster, IRank } from '../../api';
import { formatMemory, formatPartOfMemory, formatShare, joinParts } from '../../format';
import { activity, rankState } from '../../states';
import { ITableView } from '../selection';
import { IFilter } from './filter';

/** The row of a rank. */
export interface IRankRow {
  key: string;
  rank: IRank;
}

/** The heading above the ranks of a node. */
export interface INodeRow {
  key: string;
  node: number;
  hostname: string;
  count: number;
}

export type TableRow = IRankRow | INodeRow;

/** A column: its text for a rank, and the value that it is sorted by. */
export interface IColumn {
  key: string;
  label: string;
  /** A track of a CSS grid. */
  width: string;
  isNumber: boolean;
  text: (rank: IRank, now: number) => string;
  order: (rank: IRank, now: number) => number | string;
}

/** The columns that have something to show: no device or GPU where none is known. */
export function columns(ranks: IRank[], isByNode: boolean, trans: TranslationBundle): IColumn[] {
  const any = (isKnown: (rank: IRank) => unknown): boolean => ranks.some(rank => isKnown(rank));
  const all: (IColumn | false)[] = [
    column('rank', trans.__('Rank'), '48px', rank => rank.rank),
    !isByNode && column('node', trans.__('Node'), '50px', rank => rank.node),
    {
      ...column('state', trans.__('State'), '104px', rank => rankState(rank, trans).label),
      isNumber: false
    },
    {
      key: 'doing',
      label: trans.__('Doing'),
      width: 'minmax(150px, 1fr)',
      isNumber: false,
      text: (rank, now) => activity(rank, now, trans),
      order: (rank, now) => (rank.doing ? -rank.doing.seconds - (now - (rank.receivedAt ?? now)) / 1000 : 1)
    },
    any(rank => rank.device) && {
      ...column('device', trans.__('Device'), '62px', rank => rank.device),
      isNumber: false
    },
    any(rank => typeof rank.doing?.cpu === 'number') && {
      ...column('cpu', trans.__('CPU'), '62px', rank => rank.doing?.cpu ?? -1),
      text: rank => formatShare(rank.doing?.cpu)
    },
    any(rank => rank.rss) && {
      ...column('memory', trans.__('Memory'), '76px', rank => rank.rss ?? 0),
      text: rank => (rank.rss ? formatMemory(rank.rss) : '')
    },
    any(rank => rank.gpu_total || rank.gpu_own) && {
      ...column('gpumemory', trans.__('GPU memory'), '120px', rank => rank.gpu_own ?? rank.gpu_used ?? 0),
      text: gpuMemory
    },
    any(rank => typeof rank.gpu_busy === 'number') && {
      ...column('gpu', trans.__('GPU'), '58px', rank => rank.gpu_busy ?? -1),
      text: rank => formatShare(rank.gpu_busy)
    }
  ];
  return all.filter((each): each is IColumn => !!each);
}

/** Pixels of width below which the table has only the columns that are always shown. */
const NARROW = 400;
/** The same without the node. */
const NARROWEST = 300;

/**
 * The columns for which there is room in so many pixels. In a narrow table the activity stands behind the state, and
 * all else in the tooltip of both; so rank, state and menu can always be seen.
 */
export function fittingColumns(all: IColumn[], width: number, trans: TranslationBundle): IColumn[] {
  if (width >= NARROW) {
    return all;
  }
  const kept = all.filter(({ key }) => key === 'rank' || key === 'state' || (key === 'node' && width >= NARROWEST));
  return kept.map(each => {
    if (each.key !== 'state') {
      return { ...each, width: '42px' };
    }
    const text = (rank: IRank, now: number): string => joinParts(each.text(rank, now), activity(rank, now, trans));
    return { ...each, width: 'minmax(0, 1fr)', text };
  });
}

function column(key: string, label: string, width: string, value: (rank: IRank) => number | string): IColumn {
  return { key, label, width, isNumber: true, text: rank => String(value(rank)), order: value };
}

/** The rows to show, in order; `all` are the columns, whether there is room for them or not. */
export function tableRows(
  cluster: ICluster,
  view: ITableView,
  filter: IFilter,
  all: IColumn[],
  now: number
): TableRow[] {
  const ranks = (cluster.ranks ?? []).filter(rank => matches(rank, filter, all, now));
  const by = all.find(each => each.key === view.sort) ?? all[0];
  const sign = view.isDescending ? -1 : 1;
  ranks.sort((a, b) => sign * compare(by.order(a, now), by.order(b, now)) || a.rank - b.rank);
  const rows = ranks.map(rank => ({ key: `r${rank.rank}`, rank }));
  if (!view.isByNode) {
    return rows;
  }
  const nodes = [...new Set(ranks.map(rank => rank.node))].sort((a, b) => a - b);
  return nodes.flatMap(node => {
    const own = rows.filter(({ rank }) => rank.node === node);
    return [{ key: `n${node}`, node, hostname: own[0].rank.hostname, count: own.length }, ...own];
  });
}

/** The ranks of these rows; headings have none. */
export function ranksOfRows(rows: TableRow[]): number[] {
  return rows.flatMap(row => ('rank' in row ? [row.rank.rank] : []));
}

function compare(a: number | string, b: number | string): number {
  return typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b));
}

/** The rank is named, and every word of the filter occurs in a column, the host or the line of the cell. */
function matches(rank: IRank, { ranks, words }: IFilter, all: IColumn[], now: number): boolean {
  if (ranks && !ranks.has(rank.rank)) {
    return false;
  }
  const texts = [rank.hostname, rank.doing?.source ?? '', rank.last_line, ...all.map(each => each.text(rank, now))];
  const text = words.length ? texts.join(' ').toLowerCase() : '';
  return words.every(word => text.includes(word));
}

/** `1.2 / 141 GiB`: the rank's own share of its GPU's memory, or that of all processes where its own is not known. */
function gpuMemory({ gpu_own, gpu_used, gpu_total }: IRank): string {
  if (!gpu_total) {
    return gpu_own ? formatMemory(gpu_own) : '';
  }
  return formatPartOfMemory(gpu_own ?? gpu_used ?? 0, gpu_total);
}
