/**
 * A line chart: lines over a common x, a band behind them, and the values at the cursor. A thin wrapper of uPlot that
 * takes its colours from JupyterLab's theme, fits its node, and can be read with the keyboard and a screen reader.
 */

import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import uPlot from 'uplot';

import { bandColour, colourOf, faintColour, Role } from './colours';
import { indexAt, placeOf } from './cursor';

/** One line. Its values are as many as the chart's x; null where there is none. */
export interface ILine {
  label: string;
  values: (number | null)[];
  /** How it looks: `main`, `faint` (thin, in the background) or `marked` (dashed, in the colour of errors). */
  role: Role;
}

/** What a chart shows. */
export interface IChartData {
  /** Ascending. */
  x: number[];
  lines: ILine[];
  /** The area between two lines that are not drawn themselves. */
  band?: { low: (number | null)[]; high: (number | null)[] };
}

/** How a chart looks, and how its numbers are written. */
export interface IChartOptions {
  /** Read out when the chart gets the focus. */
  label: string;
  height: number;
  /** Whether x is in seconds since 1970, rather than plain numbers. */
  isTime?: boolean;
  /** The texts to show for the entry of `x` with this index: a head, and rows beneath it. */
  describe: (index: number) => { head: string; rows: string[] };
  /** The text of a number on the y axis. */
  format?: (value: number) => string;
}

const X_AXIS = 28;
const Y_AXIS = 56;
const MARGIN = 8;
const FONT = '11px system-ui, sans-serif';

/** Draws `IChartData`, again and again as it grows; a part that the user has zoomed to stays. */
export class LineChart extends Widget {
  constructor(private _options: IChartOptions) {
    super();
    this.addClass('jdist-Chart');
    const { node } = this;
    node.tabIndex = 0;
    node.setAttribute('role', 'application');
    node.setAttribute('aria-label', _options.label);
    node.style.height = `${_options.height}px`;
    this._values.className = 'jdist-ChartValues';
    this._values.setAttribute('role', 'status');
    this._values.hidden = true;
    document.body.append(this._values); // an output would cut it off
    node.addEventListener('blur', () => this._choose(-1));
    this._resized = new ResizeObserver(() => this._fit());
    this._resized.observe(node);
    charts.set(node, this);
  }

  /** The chart of a node. */
  static of(node: Element): LineChart | undefined {
    return charts.get(node);
  }

  dispose(): void {
    if (!this.isDisposed) {
      this._resized.disconnect();
      this._plot?.destroy();
      this._values.remove();
      charts.delete(this.node);
    }
    super.dispose();
  }

  /** Shows other data. */
  show_(data: IChartData): void {
    const shape = JSON.stringify([data.lines.map(line => [line.label, line.role]), !!data.band]);
    const { _plot: plot, _data: old, _chosen: chosen } = this;
    this._data = data;
    if (shape !== this._shape) {
      this._shape = shape;
      plot?.destroy();
      this._plot = undefined;
      this._fit();
    } else if (plot) {
      const { min, max } = plot.scales.x;
      const isZoomed = !!old && (min! > old.x[0] || max! < old.x[old.x.length - 1]);
      plot.setData(columnsOf(data), !isZoomed);
    }
    if (chosen >= 0) {
      this._choose(Math.min(chosen, data.x.length - 1));
    }
  }

  /** Draws again in the colours of the present theme. */
  recolour(): void {
    this._plot?.redraw(false);
  }

  /** Moves the cursor with the keyboard; whether the key has a meaning here. */
  onKey(event: KeyboardEvent): boolean {
    const size = this._data?.x.length ?? 0;
    if (!this._plot || !size || event.altKey || event.ctrlKey || event.metaKey) {
      return false;
    }
    const next = indexAt(event.key, this._chosen, size);
    if (next === undefined) {
      return false;
    }
    event.preventDefault();
    this._choose(next);
    return true;
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._fit();
  }

  /** Makes the plot once the node has a size, and gives it the node's width. */
  private _fit(): void {
    const width = Math.floor(this.node.clientWidth);
    if (!width || !this._data || this.isDisposed) {
      return;
    }
    const size = { width, height: this._options.height };
    if (this._plot) {
      this._plot.setSize(size);
    } else {
      this._plot = new uPlot(this._plotOptions(this._data, size), columnsOf(this._data), this.node);
    }
  }

  private _plotOptions(data: IChartData, size: { width: number; height: number }): uPlot.Options {
    const { node } = this;
    const axis: uPlot.Axis = {
      font: FONT,
      stroke: () => colourOf(node, 'text'),
      grid: { stroke: () => colourOf(node, 'grid'), width: 1 },
      ticks: { stroke: () => colourOf(node, 'grid'), width: 1 }
    };
    const { format } = this._options;
    const y: uPlot.Axis = { ...axis, size: Y_AXIS, values: format && ((_, values) => values.map(format)) };
    const hidden: uPlot.Series = { stroke: 'transparent', width: 0, points: { show: false } };
    const lines = data.lines.map(line => seriesOf(node, line, data.lines.length));
    const bands = data.band && [{ series: [2, 1] as uPlot.Band.Bounds, fill: () => bandColour(node) }];
    return {
      ...size,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      scales: { x: { time: this._options.isTime ?? false } },
      axes: [{ ...axis, size: X_AXIS }, y],
      series: [{}, ...(data.band ? [hidden, hidden] : []), ...lines],
      bands: bands ?? [],
      hooks: { setCursor: [plot => this._tell(plot.cursor.idx ?? -1)] }
    };
  }

  /** Puts the cursor on an entry; -1 removes it. */
  private _choose(index: number): void {
    const x = this._data?.x[index];
    this._plot?.setCursor(x === undefined ? { left: -10, top: -10 } : { left: this._plot.valToPos(x, 'x'), top: 10 });
  }

  /** Shows the values of an entry beside the cursor. */
  private _tell(index: number): void {
    this._chosen = index;
    this._values.hidden = index < 0;
    if (index < 0 || !this._plot) {
      return;
    }
    const { head, rows } = this._options.describe(index);
    const title = document.createElement('strong');
    title.textContent = head;
    const items = rows.map(row => Object.assign(document.createElement('div'), { textContent: row }));
    const list = document.createElement('div');
    list.append(...items);
    this._values.replaceChildren(title, list);
    this._values.classList.toggle('jdist-mod-many', rows.length > 12);
    this._place(this._plot);
  }

  /** Puts the values beside the cursor, within the window. */
  private _place(plot: uPlot): void {
    const { style, offsetWidth, offsetHeight } = this._values;
    const box = plot.over.getBoundingClientRect();
    const at = box.left + (plot.cursor.left ?? 0);
    style.left = `${placeOf(at, offsetWidth, window.innerWidth)}px`;
    style.top = `${Math.max(0, Math.min(box.top, window.innerHeight - offsetHeight - MARGIN))}px`;
  }

  private _data?: IChartData;
  private _plot?: uPlot;
  private _shape = '';
  private _chosen = -1;
  private readonly _resized: ResizeObserver;
  private readonly _values = document.createElement('div');
}

const charts = new Map<Element, LineChart>();

/** Draws all charts in the colours of the present theme. */
export function recolourCharts(): void {
  charts.forEach(chart => chart.recolour());
}

function seriesOf(node: HTMLElement, line: ILine, count: number): uPlot.Series {
  return {
    label: line.label,
    stroke: () => (line.role === 'faint' ? faintColour(node, count) : colourOf(node, line.role)),
    width: line.role === 'main' ? 2 : 1,
    dash: line.role === 'marked' ? [5, 3] : undefined,
    points: { show: line.values.length === 1 },
    spanGaps: false
  };
}

/** The data as uPlot takes it: x, the band's lines, and the others. */
function columnsOf(data: IChartData): uPlot.AlignedData {
  const band = data.band ? [data.band.low, data.band.high] : [];
  return [data.x, ...band, ...data.lines.map(line => line.values)];
}
