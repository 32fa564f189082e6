/** The metrics of a run below its output: a chart for each name, the ranks to look at, and the newest numbers. */

import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { TranslationBundle } from '@jupyterlab/translation';
import { Panel, Widget } from '@lumino/widgets';

import { LineChart } from '../charts/linechart';
import { chartData, IMetricChart, IMetricsBundle, METRICS_MIME, METRICS_VERSION, stepsText, valueText } from './data';

const HEIGHT = 190;

/** Renders the bundle, again and again while the run goes on; the charts and what is open stay as they are. */
export class MetricsOutput extends Panel implements IRenderMime.IRenderer {
  constructor(
    private _rendermime: IRenderMimeRegistry,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-Metrics');
    this._charts.addClass('jdist-MetricsCharts');
    this._marks.addClass('jdist-MetricsMarks');
    this._marks.node.setAttribute('role', 'status');
    this._table.addClass('jdist-MetricsTable');
    this._details.append(this._summary, this._body);
    this._table.node.append(this._details);
    [this._charts, this._marks, this._table].forEach(widget => this.addWidget(widget));
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const found = model.data[METRICS_MIME] as unknown as IMetricsBundle;
    if (found?.version !== METRICS_VERSION) {
      return this._showHtml(model);
    }
    this._showCharts(found.charts);
    this._showMarks(found.marks);
    this._showTable(found);
  }

  private _showCharts(charts: IMetricChart[]): void {
    const names = new Set(charts.map(chart => chart.name));
    for (const view of [...this._views.values()]) {
      if (!names.has(view.name)) {
        this._views.delete(view.name);
        view.dispose();
      }
    }
    for (const chart of charts) {
      let view = this._views.get(chart.name);
      if (!view) {
        view = new MetricView(chart, this._trans);
        this._views.set(chart.name, view);
        this._charts.addWidget(view);
      }
      view.show_(chart);
    }
  }

  private _showMarks(marks: string[]): void {
    const key = marks.join('\n');
    if (key !== this._shownMarks) {
      this._shownMarks = key;
      const lines = marks.map(text => Object.assign(document.createElement('div'), { textContent: `⚠ ${text}` }));
      this._marks.node.replaceChildren(...lines);
    }
  }

  private _showTable(found: IMetricsBundle): void {
    const { _trans: trans } = this;
    this._summary.textContent = found.headline;
    const table = document.createElement('table');
    const head = table.createTHead().insertRow();
    found.heads.forEach(text => {
      const cell = document.createElement('th');
      cell.scope = 'col';
      cell.textContent = text;
      head.append(cell);
    });
    const body = table.createTBody();
    for (const row of found.rows) {
      const line = body.insertRow();
      row.forEach(text => (line.insertCell().textContent = text));
    }
    const more = document.createElement('div');
    more.textContent = found.more ? trans._n('… %1 more name', '… %1 more names', found.more) : '';
    this._body.replaceChildren(table, more);
  }

  /** A bundle of another version is shown by its HTML. */
  private async _showHtml(model: IRenderMime.IMimeModel): Promise<void> {
    this.widgets.forEach(widget => widget.hide());
    this._html?.dispose();
    const renderer = this._rendermime.createRenderer('text/html');
    this._html = renderer;
    this.addWidget(renderer);
    await renderer.renderModel(new MimeModel({ data: model.data, metadata: model.metadata, trusted: model.trusted }));
  }

  private readonly _views = new Map<string, MetricView>();
  private readonly _charts = new Panel();
  private readonly _marks = new Widget();
  private readonly _table = new Widget();
  private readonly _details = document.createElement('details');
  private readonly _summary = document.createElement('summary');
  private readonly _body = document.createElement('div');
  private _shownMarks = '';
  private _html?: Widget;
}

/** The chart of one name. */
class MetricView extends Panel {
  constructor(
    chart: IMetricChart,
    private _trans: TranslationBundle
  ) {
    super();
    this.name = chart.name;
    this._chart = chart;
    this.addClass('jdist-Metric');
    this._title.node.textContent = chart.name;
    this._title.addClass('jdist-MetricTitle');
    this._lines = new LineChart({
      label: this._trans.__('Chart of %1 over steps. The arrow keys read its values; a table follows.', chart.name),
      height: HEIGHT,
      describe: index => this._describe(index),
      format: valueText,
      failure: this._trans.__('The chart cannot be drawn: its code could not be fetched. Reload the page.')
    });
    this.addWidget(this._title);
    this.addWidget(this._lines);
    this.addWidget(this._note);
    this._note.addClass('jdist-MetricNote');
  }

  readonly name: string;

  show_(chart: IMetricChart): void {
    const { _trans: trans } = this;
    this._chart = chart;
    this._lines.show_(chartData(chart, rank => trans.__('rank %1', rank), trans.__('mean')));
    const notes = [];
    if (chart.ranks.length < chart.count) {
      notes.push(trans.__('%1 of %2 ranks have a line of their own', chart.ranks.length, chart.count));
    }
    if (chart.width > 1) {
      notes.push(trans.__('means of %1 steps', chart.width));
    }
    const text = notes.join(' · ');
    if (this._note.node.textContent !== text) {
      this._note.node.textContent = text;
    }
  }

  /** The values of an entry; those of marked ranks come first. */
  private _describe(index: number): { head: string; rows: string[] } {
    const { _chart: chart, _trans: trans } = this;
    const value = valueText(chart.mean[index]);
    if (chart.count === 1) {
      return { head: trans.__('step %1', stepsText(chart, index)), rows: [value] };
    }
    const low = trans.__('lowest %1', valueText(chart.low[index]));
    const high = trans.__('highest %1', valueText(chart.high[index]));
    const ranks = [...chart.ranks].sort((a, b) => Number(!!b.is_marked) - Number(!!a.is_marked));
    const own = ranks.map(({ rank, values, is_marked }) => {
      const text = trans.__('rank %1: %2', rank, valueText(values[index]));
      return is_marked ? `⚠ ${text}` : text;
    });
    return {
      head: trans.__('step %1', stepsText(chart, index)),
      rows: [trans.__('mean %1', value), low, high, ...own]
    };
  }

  private _chart: IMetricChart;
  private readonly _lines: LineChart;
  private readonly _title = new Widget();
  private readonly _note = new Widget();
}
