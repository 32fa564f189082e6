/** What one variable is on each rank, and what can be done with it. */

import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { IValueRow, ValueDescription } from '../../variables';
import { IVariableRow } from '../../generated/server';
import { joinParts } from '../../format';
import { Comparison } from './comparing';
import { Histogram } from './histogram';
import { numbers } from './rows';

/** The values of the variable that is open, null as long as they are not known, and the last comparison of them. */
export interface IDetails {
  name: string;
  values: IValueRow[] | null;
  comparison: Comparison | null;
  /** Why the values cannot be read. */
  problem: string;
  /** The values are from before the last cell; they are being read again, or `problem` says why they cannot be. */
  isOld: boolean;
}

interface IDetailsProps {
  variable: IVariableRow;
  details: IDetails;
  trans: TranslationBundle;
  pull: () => void;
  check: () => void;
  remove: () => void;
}

export function Details({ variable, details, trans, pull, check, remove }: IDetailsProps): JSX.Element {
  const { values, comparison, problem, isOld } = details;
  const { device, placement, detail } = variable.variants[0];
  const about = joinParts(device, placement, detail);
  return (
    <div className="jdist-variable-details">
      {about && <p>{about}</p>}
      <p className="jdist-buttons">
        <button className="jdist-action" onClick={pull}>
          {trans.__('Pull into the notebook')}
        </button>
        <button className="jdist-action" title={trans.__('Compare the contents on all ranks')} onClick={check}>
          {trans.__('Check equality')}
        </button>
        <button className="jdist-action" onClick={remove}>
          {trans.__('Delete…')}
        </button>
      </p>
      {comparison && <Compared comparison={comparison} trans={trans} />}
      {problem && <p role="alert">{problem}</p>}
      {!values && !problem && <p>{trans.__('Reading…')}</p>}
      {isOld && <p className="jdist-note">{trans.__('These values are from before the last cell.')}</p>}
      {values && (
        <ul className="jdist-list" aria-label={trans.__('Values of %1 by rank', variable.name)}>
          {values.map(({ ranks, description }) => (
            <li key={ranks}>
              <span className="jdist-ranks">[{ranks}]</span> <Value value={description} trans={trans} />
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function Compared({ comparison, trans }: { comparison: Comparison; trans: TranslationBundle }): JSX.Element {
  const { text, problem, isPending, isOld } = comparison;
  return (
    <>
      {problem ? <p role="alert">{problem}</p> : <p role="status">{isPending ? trans.__('Comparing…') : text}</p>}
      {isOld && <p className="jdist-note">{trans.__('The contents may have changed since they were compared.')}</p>}
    </>
  );
}

function Value({ value, trans }: { value: ValueDescription; trans: TranslationBundle }): JSX.Element {
  if (value.error) {
    return <span>{value.error}</span>;
  }
  const shape = value.shape ? `[${value.shape.join(', ')}]` : '';
  const length = typeof value.length === 'number' ? trans._n('%1 item', '%1 items', value.length) : '';
  const sampled = value.sampled ? trans.__('of a sample') : '';
  return (
    <>
      <span>
        {joinParts(
          [value.type, shape, value.dtype].filter(Boolean).join(' '),
          value.placement ?? '',
          length,
          value.detail ?? ''
        )}
      </span>
      <dl>
        {numbers(value).map(([name, text]) => (
          <React.Fragment key={name}>
            <dt>{name}</dt>
            <dd>{text}</dd>
          </React.Fragment>
        ))}
      </dl>
      {sampled && <span className="jdist-note">{sampled}</span>}
      {value.histogram && <Histogram histogram={value.histogram} trans={trans} />}
      {value.thumb && value.thumb.length > 0 && <Picture rows={value.thumb} trans={trans} />}
    </>
  );
}

/** A matrix as a picture: blue below zero, red above, stronger further out. */
function Picture({ rows, trans }: { rows: (number | null)[][]; trans: TranslationBundle }): JSX.Element {
  const canvas = React.useRef<HTMLCanvasElement>(null);
  const [height, width] = [rows.length, rows[0].length];
  React.useEffect(() => {
    const context = canvas.current?.getContext('2d');
    if (context) {
      context.putImageData(new ImageData(colours(rows), width, height), 0, 0);
    }
  }, [rows]);
  const label = trans.__('The elements, blue below zero and red above: %1 rows, %2 columns', height, width);
  return <canvas ref={canvas} className="jdist-picture" width={width} height={height} role="img" aria-label={label} />;
}

/** Red, green, blue and opacity of each element; one that is no finite number is grey. */
function colours(rows: (number | null)[][]): Uint8ClampedArray {
  const all = rows.flat();
  const far = Math.max(...all.map(each => Math.abs(each ?? 0))) || 1;
  return Uint8ClampedArray.from(
    all.flatMap(each => {
      if (each === null) {
        return [128, 128, 128, 255];
      }
      const rest = 245 * (1 - Math.abs(each) / far);
      return each < 0 ? [rest, rest, 245, 255] : [245, rest, rest, 255];
    })
  );
}
