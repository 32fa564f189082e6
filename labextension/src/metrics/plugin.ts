/** The plugin that renders the metrics of runs in notebooks. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IThemeManager } from '@jupyterlab/apputils';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { LineChart, recolourCharts } from '../charts/linechart';
import { METRICS_MIME } from './data';
import { MetricsOutput } from './view';

/** Ranks before HTML, which is in the same bundle for front ends without this extension. */
const RANK = 0;

export const metrics: JupyterFrontEndPlugin<void> = {
  id: 'jdist:metrics',
  description: 'Charts of what the ranks of a run have logged.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ITranslator, IThemeManager],
  activate: (
    _app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    translator: ITranslator | null,
    themes: IThemeManager | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jdist');
    rendermime.addFactory(
      { safe: true, mimeTypes: [METRICS_MIME], createRenderer: () => new MetricsOutput(rendermime, trans) },
      RANK
    );
    themes?.themeChanged.connect(recolourCharts);
    window.addEventListener('keydown', onKey, true);
  }
};

/** Keeps keys that move a chart's cursor from the notebook, which listens on the document: this listens on the window. */
function onKey(event: KeyboardEvent): void {
  const target = event.target instanceof HTMLElement ? event.target : null;
  if (target && LineChart.of(target)?.onKey(event)) {
    event.stopPropagation();
  }
}
