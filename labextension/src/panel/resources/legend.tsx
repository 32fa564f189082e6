/** The legend of charts: whose lines these are. A click selects a rank, or those of a node, as in the table. */

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { cssColour, dashOf, ILook } from '../../charts/colours';
import { Selection } from '../selection';
import { ISubject, ISubjects } from './subjects';

interface IProps {
  subjects: ISubjects;
  selection: Selection;
  trans: TranslationBundle;
}

export function Legend({ subjects, selection, trans }: IProps): JSX.Element | null {
  const { by, shown, of, isBand } = subjects;
  if (shown.length === 1) {
    return null; // there is but one line
  }
  const lines = isBand ? shown.filter(each => each.order !== undefined) : shown;
  const label = by === 'rank' ? trans.__('Ranks in the charts') : trans.__('Nodes in the charts');
  return (
    <div className="jdist-legend" role="group" aria-label={label}>
      {isBand && (
        <>
          <span>
            <Swatch look={{ role: 'main' }} /> {meanText(by, shown.length, of, trans)}
          </span>
          <span>
            <span className="jdist-Swatch jdist-mod-band" aria-hidden="true" /> {trans.__('range')}
          </span>
        </>
      )}
      {!isBand && <span>{by === 'rank' ? trans.__('rank') : trans.__('node')}</span>}
      {lines.map(each => (
        <button
          key={each.label}
          aria-pressed={each.isSelected}
          aria-label={each.label}
          title={each.label}
          onClick={() => select(each, selection)}
        >
          <Swatch look={each.order === undefined ? { role: 'faint' } : { role: 'own', order: each.order }} />{' '}
          {each.name}
        </button>
      ))}
      {isBand && !lines.length && !of && <span>{trans.__('Select ranks in the table to see their lines.')}</span>}
    </div>
  );
}

function meanText(by: ISubjects['by'], count: number, of: number, trans: TranslationBundle): string {
  if (by === 'rank') {
    return of ? trans.__('mean of the %1 selected ranks', count) : trans.__('mean of %1 ranks', count);
  }
  return of ? trans.__('mean of the %1 selected nodes', count) : trans.__('mean of %1 nodes', count);
}

/** Adds the ranks to the selection, or removes them if they are all selected. */
function select({ ranks }: ISubject, selection: Selection): void {
  const others = selection.ranks.filter(rank => !ranks.includes(rank));
  selection.select(ranks.every(rank => selection.has(rank)) ? others : [...others, ...ranks]);
}

/** A piece of a line. */
function Swatch({ look }: { look: ILook }): JSX.Element {
  const style = { stroke: cssColour(look), strokeDasharray: dashOf(look).join(' ') || 'none' };
  return (
    <svg className="jdist-Swatch" aria-hidden="true">
      <line x1="0" x2="100%" y1="50%" y2="50%" style={style} />
    </svg>
  );
}
