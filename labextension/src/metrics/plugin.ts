/** The plugin that renders the metrics of runs in notebooks. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { METRICS_MIME } from './data';
import { MetricsOutput } from './view';

/** Ranks before HTML, which is in the same bundle for front ends without this extension. */
const RANK = 0;

export const metrics: JupyterFrontEndPlugin<void> = {
  id: 'jdist:metrics',
  description: 'Charts of what the ranks of a run have logged.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ITranslator],
  activate: (_app: JupyterFrontEnd, rendermime: IRenderMimeRegistry, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('jdist');
    rendermime.addFactory(
      { safe: true, mimeTypes: [METRICS_MIME], createRenderer: () => new MetricsOutput(rendermime, trans) },
      RANK
    );
  }
};
