/** The plugin with which all charts follow the theme and the keyboard. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IThemeManager } from '@jupyterlab/apputils';

import { LineChart, recolourCharts } from './linechart';

export const charts: JupyterFrontEndPlugin<void> = {
  id: 'jdist:charts',
  description: 'Keys and colours of charts.',
  autoStart: true,
  optional: [IThemeManager],
  activate: (_app: JupyterFrontEnd, themes: IThemeManager | null) => {
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
