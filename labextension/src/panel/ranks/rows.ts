/** The rows and columns of the table of ranks: filtered, sorted and grouped. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster, IRank } from '../../api';
import { formatMemory, includesRank, formatPartOfMemory, formatShare } from '../../format';
import { activity, rankState } from '../../states';
import { ITableView } from '../selection';

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

/**
 * The columns that have something to show: no device or GPU where none is known.
 *
 * In a narrow table the state is a sign, and its label stands in the column of the activity where that is empty.
 */
export function columns(ranks: IRank[], isByNode: boolean, isNarrow: boolean, trans: TranslationBundle): IColumn[] {
  const any = (isKnown: (rank: IRank) => unknown): boolean => ranks.some(rank => isKnown(rank));
  const all: (IColumn | false)[] = [
    column('rank', trans.__('Rank'), '48px', rank => rank.rank),
    !isByNode && column('node', trans.__('Node'), '50px', rank => rank.node),
    {
      ...column('state', trans.__('State'), isNarrow ? '46px' : '104px', rank => rankState(rank, trans).label),
      isNumber: false
    },
    {
      key: 'doing',
      label: trans.__('Doing'),
      width: isNarrow ? 'minmax(110px, 1fr)' : 'minmax(150px, 1fr)',
      isNumber: false,
      text: (rank, now) => activity(rank, now, trans) || (isNarrow ? rankState(rank, trans).label : ''),
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

function column(key: string, label: string, width: string, value: (rank: IRank) => number | string): IColumn {
  return { key, label, width, isNumber: true, text: rank => String(value(rank)), order: value };
}

/** The rows to show, in order. */
export function tableRows(cluster: ICluster, view: ITableView, shown: IColumn[], now: number): TableRow[] {
  const ranks = (cluster.ranks ?? []).filter(rank => matches(rank, view.filter, shown, now));
  const by = shown.find(each => each.key === view.sort) ?? shown[0];
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

/** Every word of the filter occurs in a column, the host or the line of the cell; `0-3,5` and `4-` are ranks. */
function matches(rank: IRank, filter: string, shown: IColumn[], now: number): boolean {
  const sought = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!sought.length) {
    return true;
  }
  const text = [rank.hostname, rank.doing?.source ?? '', rank.last_line, ...shown.map(each => each.text(rank, now))]
    .join(' ')
    .toLowerCase();
  return sought.every(word => (/^[\d,-]+$/.test(word) ? includesRank(word, rank.rank) : text.includes(word)));
}

/** `1.2 / 141 GiB`: the rank's own share of its GPU's memory, or that of all processes where its own is not known. */
function gpuMemory({ gpu_own, gpu_used, gpu_total }: IRank): string {
  if (!gpu_total) {
    return gpu_own ? formatMemory(gpu_own) : '';
  }
  return formatPartOfMemory(gpu_own ?? gpu_used ?? 0, gpu_total);
}

/** The tooltip of a GPU: which one it is, and whose memory is counted. */
export function gpuDetails({ gpu_name, gpu_own, gpu_used, gpu_total }: IRank, trans: TranslationBundle): string {
  const own = typeof gpu_own === 'number' ? trans.__("The rank's process has %1", formatMemory(gpu_own)) : '';
  const all = gpu_total
    ? trans.__('All processes have %1 of %2', formatMemory(gpu_used ?? 0), formatMemory(gpu_total))
    : '';
  return [gpu_name, own, all].filter(Boolean).join('\n');
}
