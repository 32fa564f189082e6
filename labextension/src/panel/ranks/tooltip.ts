/** The tooltips of the table's cells. */

import { TranslationBundle } from '@jupyterlab/translation';

import { IRank } from '../../api';
import { formatMemory } from '../../format';
import { lastDeath } from '../../states';
import { IColumn } from './rows';

/** The whole text of a cell, which may be too narrow for it, and what there is no column or no room for. */
export function tooltip(
  key: string,
  rank: IRank,
  text: string,
  now: number,
  trans: TranslationBundle,
  others: IColumn[]
): string {
  const details = [text, rank.doing?.source, rank.last_line, lastDeath(rank, now, trans)];
  switch (key) {
    case 'doing':
      return lines(details);
    case 'state': {
      const rest = others.filter(each => !['rank', 'state', 'doing'].includes(each.key));
      return lines(others.length ? [...details, ...rest.map(each => labelled(each, rank, now))] : [text]);
    }
    case 'device':
    case 'gpu':
    case 'gpumemory':
      return gpuDetails(rank, trans) || text;
    default:
      return text;
  }
}

function labelled({ label, text }: IColumn, rank: IRank, now: number): string {
  const value = text(rank, now);
  return value && `${label}: ${value}`;
}

/** The texts that are not empty, each once. */
function lines(texts: (string | undefined)[]): string {
  return [...new Set(texts)].filter(Boolean).join('\n');
}

/** The tooltip of a GPU: which one it is, and whose memory is counted. */
export function gpuDetails({ gpu_name, gpu_own, gpu_used, gpu_total }: IRank, trans: TranslationBundle): string {
  const own = typeof gpu_own === 'number' ? trans.__("The rank's process uses %1", formatMemory(gpu_own)) : '';
  const all = gpu_total
    ? trans.__('All processes use %1 of %2', formatMemory(gpu_used ?? 0), formatMemory(gpu_total))
    : '';
  return [gpu_name, own, all].filter(Boolean).join('\n');
}
