/** Brings back the chart below a run's output: its kernel keeps it up to date only as long as its page is open, too. */

import { CodeCell } from '@jupyterlab/cells';
import { INotebookTracker } from '@jupyterlab/notebook';
import { JSONExt, PartialJSONObject } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';

import { METRICS_MIME } from '../metrics/data';
import { IRunJson } from '../generated/server';
import { chartIndex } from './recovery';

/** Shows the metrics of the run whose output `from` is, in its cell. */
export function showMetrics(
  notebooks: INotebookTracker,
  from: Widget,
  run: IRunJson,
  metrics: PartialJSONObject
): void {
  const panel = notebooks.find(each => each.node.contains(from.node));
  const cell = panel?.content.widgets.find(each => each.node.contains(from.node));
  if (!(cell instanceof CodeCell)) {
    return;
  }
  const { model } = cell.outputArea;
  const outputs = Array.from({ length: model.length }, (_, i) => model.get(i).data as PartialJSONObject);
  const index = chartIndex(outputs, run);
  if (index === outputs.length) {
    model.add({ output_type: 'display_data', data: metrics as never, metadata: {} });
  } else if (index >= 0 && !JSONExt.deepEqual(outputs[index][METRICS_MIME] ?? null, metrics[METRICS_MIME] ?? null)) {
    model.get(index).setData({ data: metrics });
  }
}
