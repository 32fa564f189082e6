/** Lines: the rows of the table of ranks, filtered, sorted and grouped. Pure. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster, IRank } from '../api';
import * as words from '../words';
import { IView } from './choice';

/** A rank's row, or the heading of a node's ranks. */
export type Line = { key: string; row: IRank } | { key: string; node: number; hostname: string; count: number };

/** A column: what it says of a rank, and what it is sorted by. */
export interface IColumn {
  key: string;
  label: string;
  /** As CSS grid takes it. */
  width: string;
  isNumber: boolean;
  text: (row: IRank, now: number) => string;
  order: (row: IRank, now: number) => number | string;
}

/**
 * Those columns that have something to say: no device or GPU where none is known.
 *
 * Where it is narrow, a state is a sign, and its word stands where there is nothing to say of what the rank does.
 */
export function columns(rows: IRank[], isByNode: boolean, isNarrow: boolean, trans: TranslationBundle): IColumn[] {
  const has = (known: (row: IRank) => unknown): boolean => rows.some(row => known(row));
  const all: (IColumn | false)[] = [
    column('rank', trans.__('Rank'), '48px', row => row.rank),
    !isByNode && column('node', trans.__('Node'), '50px', row => row.node),
    {
      ...column('state', trans.__('State'), isNarrow ? '46px' : '92px', row => words.rankState(row, trans).word),
      isNumber: false
    },
    {
      key: 'doing',
      label: trans.__('Doing'),
      width: isNarrow ? 'minmax(110px, 1fr)' : 'minmax(150px, 1fr)',
      isNumber: false,
      text: (row, now) => words.doing(row, now, trans) || (isNarrow ? words.rankState(row, trans).word : ''),
      order: (row, now) => (row.doing ? -row.doing.seconds - (now - (row.heard ?? now)) / 1000 : 1)
    },
    has(row => row.device) && column('device', trans.__('Device'), '62px', row => row.device),
    has(row => row.doing?.cpu !== null && row.doing?.cpu !== undefined) && {
      ...column('cpu', trans.__('CPU'), '62px', row => row.doing?.cpu ?? -1),
      text: row => (typeof row.doing?.cpu === 'number' ? `${Math.round(row.doing.cpu * 100)} %` : '')
    },
    has(row => row.rss) && {
      ...column('memory', trans.__('Memory'), '76px', row => row.rss ?? 0),
      text: row => (row.rss ? words.bytes(row.rss) : '')
    },
    has(row => row.gpu_total || row.gpu_own) && {
      ...column('gpumemory', trans.__('GPU memory'), '120px', row => row.gpu_own ?? row.gpu_used ?? 0),
      text: row => words.gpuMemory(row)
    },
    has(row => typeof row.gpu_busy === 'number') && {
      ...column('gpu', trans.__('GPU'), '58px', row => row.gpu_busy ?? -1),
      text: row => (typeof row.gpu_busy === 'number' ? `${Math.round(row.gpu_busy * 100)} %` : '')
    }
  ];
  return all.filter((each): each is IColumn => !!each);
}

function column(key: string, label: string, width: string, value: (row: IRank) => number | string): IColumn {
  return {
    key,
    label,
    width,
    isNumber: key !== 'device',
    text: row => String(value(row)),
    order: value
  };
}

/** The lines to show, in order. */
export function lines(cluster: ICluster, view: IView, shown: IColumn[], now: number): Line[] {
  const rows = (cluster.ranks ?? []).filter(row => matches(row, view.filter, shown, now));
  const by = shown.find(each => each.key === view.sort) ?? shown[0];
  const sign = view.isDown ? -1 : 1;
  rows.sort((a, b) => sign * compared(by.order(a, now), by.order(b, now)) || a.rank - b.rank);
  if (!view.isByNode) {
    return rows.map(row => ({ key: `r${row.rank}`, row }));
  }
  const nodes = new Map<number, IRank[]>();
  rows.forEach(row => nodes.set(row.node, [...(nodes.get(row.node) ?? []), row]));
  return [...nodes.keys()]
    .sort((a, b) => a - b)
    .flatMap(node => {
      const own = nodes.get(node) ?? [];
      const heading = { key: `n${node}`, node, hostname: own[0].hostname, count: own.length };
      return [heading, ...own.map(row => ({ key: `r${row.rank}`, row }))];
    });
}

function compared(a: number | string, b: number | string): number {
  return typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b));
}

/** Every word of the filter stands somewhere in the row, its host or the line of its cell; numbers alone are ranks. */
function matches(row: IRank, filter: string, shown: IColumn[], now: number): boolean {
  const sought = filter
    .toLowerCase()
    .split(/\s+/)
    .filter(each => each);
  if (!sought.length) {
    return true;
  }
  const text = [row.hostname, row.doing?.source ?? '', row.last_line, ...shown.map(each => each.text(row, now))]
    .join(' ')
    .toLowerCase();
  return sought.every(each => (/^[\d,-]+$/.test(each) ? isIn(row.rank, each) : text.includes(each)));
}

function isIn(rank: number, ranks: string): boolean {
  return ranks.split(',').some(part => {
    const [first, last] = part.split('-');
    return first !== '' && rank >= Number(first) && rank <= Number(last === undefined ? first : last || Infinity);
  });
}
