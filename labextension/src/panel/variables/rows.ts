/** The rows of the table of variables: filtered and sorted, with their texts. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ValueDescription } from '../../variables';
import { IVariableRow, IVariantRow } from '../../generated/server';
import { formatBytes, joinParts } from '../../format';

export type SortKey = 'name' | 'type' | 'size' | 'compared';

/** How the table is sorted and filtered. */
export interface IVariableView {
  sort: SortKey;
  isDescending: boolean;
  filter: string;
}

/** The sign of how ranks compare; its label says the same. */
export const SIGNS: Record<IVariableRow['comparison'], string> = { equal: '=', alike: '≈', differs: '≠', '': '' };

/** `same metadata, missing on 2-3`. */
export function comparison(variable: IVariableRow, trans: TranslationBundle): string {
  const labels: Record<IVariableRow['comparison'], string> = {
    equal: trans.__('equal'),
    alike: trans.__('same metadata'),
    differs: trans.__('differs'),
    '': ''
  };
  return joinParts(labels[variable.comparison], variable.missing ? trans.__('missing on %1', variable.missing) : '');
}

/** The variables whose name or type matches the filter, in the view's order. */
export function shownVariables(all: IVariableRow[], view: IVariableView): IVariableRow[] {
  const isMatch = matcher(view.filter.trim());
  const order = (v: IVariableRow): string | number =>
    ({ name: v.name, type: v.variants[0].type.toLowerCase(), size: v.size, compared: v.comparison })[view.sort];
  const sign = view.isDescending ? -1 : 1;
  return all
    .filter(v => isMatch(v.name) || v.variants.some(each => isMatch(each.type)))
    .sort((a, b) => sign * compare(order(a), order(b)) || compare(a.name, b.name));
}

/** Whether a text contains the filter, or matches it as a whole if it has `*` or `?`. */
function matcher(filter: string): (text: string) => boolean {
  const escaped = filter.replace(/[.+^${}()|[\]\\]/g, '\\$&');
  const isPattern = /[*?]/.test(filter);
  const source = isPattern ? `^${escaped.replace(/\*/g, '.*').replace(/\?/g, '.')}$` : escaped;
  const pattern = new RegExp(source, isPattern ? 's' : 'is');
  return text => pattern.test(text);
}

function compare(a: string | number, b: string | number): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** `[4, 4] float32`, `12 items`, `0.1`. */
export function summary(variant: IVariantRow, trans: TranslationBundle): string {
  const { shape, dtype, length, value } = variant;
  const size = shape ? `[${shape.join(', ')}]` : '';
  return [size, dtype, length === null ? '' : trans._n('%1 item', '%1 items', length), value].filter(Boolean).join(' ');
}

/** `64 B`, or `64 B … 1 KiB` where the ranks differ. */
export function bytes(variant: IVariantRow): string {
  if (!variant.nbytes) {
    return '';
  }
  const [least, most] = variant.nbytes.map(formatBytes);
  return least === most ? least : `${least} … ${most}`;
}

/** The named numbers of a value: mean, standard deviation and so on, as far as they are known. */
export function numbers(value: ValueDescription): [string, string][] {
  const text = (n: number): string => String(Number(n.toPrecision(5)));
  const known: [string, number | null | undefined][] = [
    ['mean', value.mean],
    ['std', value.std],
    ['min', value.least],
    ['max', value.greatest],
    ['norm', value.norm],
    ['NaN', value.nan_count || null]
  ];
  return known.flatMap(([name, n]) => (typeof n === 'number' ? [[name, text(n)]] : []));
}
