/** The text that describes a call. */

import { TranslationBundle } from '@jupyterlab/translation';

import { formatInterval } from '../format';
import { Trace } from './trace';

/** Everything known about a call, in several lines. */
export function describeCall(call: number, trace: Trace, trans: TranslationBundle): string {
  const { data } = trace;
  const kind = data.kinds[trace.kind[call]];
  const name = trace.number[call] ? `${kind.op} #${trace.number[call]}` : kind.op;
  const size = kind.bytes ? trans.__('%1 bytes', kind.bytes.toLocaleString()) : '';
  const lines = [
    trans.__('rank %1: %2 of %3', data.rows[trace.rowOf(call)].rank, name, data.groups[kind.group]),
    [kind.detail, size].filter(Boolean).join(' · '),
    kind.line === null ? '' : trans.__('cell line %1', kind.line),
    when(call, trace, trans),
    waiting(call, trace, trans)
  ];
  return lines.filter(Boolean).join('\n');
}

function when(call: number, trace: Trace, trans: TranslationBundle): string {
  const length = formatInterval(trace.seconds(trace.ended[call] - trace.began[call]));
  const open = trace.isOpen(call) ? trans.__(', its end was not seen') : '';
  return trans.__('at %1, for %2', formatInterval(trace.seconds(trace.began[call])), length) + open;
}

/** How long and for which ranks the call waited; empty if it did not wait. */
function waiting(call: number, trace: Trace, trans: TranslationBundle): string {
  const whom = trace.data.whom[trace.whom[call]];
  if (!trace.waited[call] && !whom) {
    return '';
  }
  const waited = formatInterval(trace.seconds(trace.waited[call]));
  return `${trans.__('waited %1', (trace.isEstimate(call) ? '≈ ' : '') + waited)} ${whom}`;
}
