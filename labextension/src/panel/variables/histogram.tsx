/** The histogram of a value on ranks: a bar for each bin, and in words the bin under the mouse or chosen by keyboard. */

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { IHistogram } from '../../variables';
import { apart, binText, describe, highest, short } from './bins';

/** The height of the highest bar, in units of the picture; its width is stretched. */
const HEIGHT = 40;

export function Histogram({ histogram, trans }: { histogram: IHistogram; trans: TranslationBundle }): JSX.Element {
  const { low, high, counts } = histogram;
  const [chosen, setChosen] = React.useState<number | null>(null);
  const most = Math.max(1, ...counts);
  const last = counts.length - 1;
  const shown = chosen ?? highest(histogram);
  const others = apart(histogram, trans);
  const onKey = (event: React.KeyboardEvent): void => {
    const moves: Record<string, number> = { ArrowLeft: shown - 1, ArrowRight: shown + 1, Home: 0, End: last };
    if (event.key in moves) {
      setChosen(Math.max(0, Math.min(last, moves[event.key])));
      event.preventDefault();
      event.stopPropagation();
    }
  };
  const onMove = (event: React.MouseEvent): void => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    setChosen(Math.max(0, Math.min(last, Math.floor(((event.clientX - left) / width) * counts.length))));
  };
  return (
    <figure className="jdist-histogram">
      <svg
        role="img"
        tabIndex={0}
        aria-label={describe(histogram, trans)}
        viewBox={`0 0 ${counts.length} ${HEIGHT}`}
        preserveAspectRatio="none"
        onKeyDown={onKey}
        onMouseMove={onMove}
        onMouseLeave={() => setChosen(null)}
        onBlur={() => setChosen(null)}
      >
        {counts.map((count, i) => {
          // Even a single element can be seen, and an empty bin has no bar.
          const height = count ? Math.max(1.5, (count / most) * HEIGHT) : 0;
          const className = i === chosen ? 'jdist-mod-chosen' : '';
          return (
            <React.Fragment key={i}>
              {i === chosen && <rect className="jdist-bin" x={i} y={0} width={1} height={HEIGHT} />}
              <rect className={className} x={i + 0.06} y={HEIGHT - height} width={0.88} height={height} />
            </React.Fragment>
          );
        })}
      </svg>
      <div className="jdist-axis" aria-hidden="true">
        <span>{short(low)}</span>
        <span>{short(high)}</span>
      </div>
      <figcaption>
        <span role="status">{counts[shown] || chosen !== null ? binText(histogram, shown, trans) : ''}</span>
        {others && <span>{others}</span>}
      </figcaption>
    </figure>
  );
}
