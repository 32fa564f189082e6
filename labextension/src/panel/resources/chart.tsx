/** One chart of resources: a title with the values at the cursor, or the newest ones, above the lines. */

import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import * as React from 'react';

import { LineChart } from '../../charts/linechart';
import { IRunMark } from '../../generated/server';
import { IResourceChart } from './lines';
import { aboutOf, describe, labelOf, summaryOf, tickText, timeText, titleOf } from './texts';

/** In pixels. */
const HEIGHT = 112;

interface IProps {
  chart: IResourceChart;
  seconds: number;
  runs: IRunMark[];
  /** The charts whose cursors move together. */
  linked: Set<LineChart>;
  trans: TranslationBundle;
}

export function ResourceChart(props: IProps): JSX.Element {
  const { chart, seconds, runs, trans } = props;
  const host = React.useRef<HTMLDivElement>(null);
  const lines = React.useRef<LineChart | null>(null);
  const latest = React.useRef(props);
  latest.current = props;
  const [cursor, setCursor] = React.useState(-1);

  React.useLayoutEffect(() => {
    const made = new LineChart(optionsOf(latest, setCursor));
    lines.current = made;
    Widget.attach(made, host.current!);
    return () => made.dispose();
  }, []);

  React.useLayoutEffect(() => {
    lines.current!.label = labelOf(chart, seconds, runs, trans);
    lines.current!.show_(chart.data);
  }, [chart]);

  const index = cursor < 0 ? chart.data.x.length - 1 : cursor;
  return (
    <div className="jdist-resource">
      <div className="jdist-resource-title" title={aboutOf(chart, trans)}>
        <span>{titleOf(chart.quantity, trans)}</span>
        <span>{summaryOf(chart, index, trans)}</span>
      </div>
      <div ref={host} />
    </div>
  );
}

/** The options of a chart that shows what the component is given at that time. */
function optionsOf(
  latest: React.MutableRefObject<IProps>,
  onCursor: (index: number) => void
): ConstructorParameters<typeof LineChart>[0] {
  const { trans, linked } = latest.current;
  return {
    label: '',
    role: 'img',
    height: HEIGHT,
    isSmall: true,
    canZoom: false,
    linked,
    onCursor,
    describe: index => describe(latest.current.chart, index, latest.current.runs, trans),
    format: value => tickText(value, latest.current.chart, trans),
    formatX: time => timeText(time, latest.current.seconds, trans)
  };
}
