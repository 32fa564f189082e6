/** A verdict as plain text, as a notebook's `text/plain` has it (`Verdict.text` in jdist/core/messages/observation.py). */

import { IVerdictRow } from './generated/server';
import { effectOf, labelOf } from './remedy';
import { VERDICT_SIGN } from './states';

export function verdictText({ headline, details, remedies }: IVerdictRow): string {
  const width = Math.max(0, ...remedies.map(each => labelOf(each).length));
  const actions = remedies.map(each => `→ ${labelOf(each).padEnd(width)}  ${effectOf(each)}`);
  return [`${VERDICT_SIGN} ${headline}`, ...details, ...actions].join('\n  ');
}
