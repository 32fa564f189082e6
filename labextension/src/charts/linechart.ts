/**
 * A line chart: lines over a common x, a band behind them, and the values at the cursor. A thin wrapper of uPlot that
 * takes its colours from JupyterLab's theme, fits its node, and can be read with the keyboard and a screen reader.
 */

import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import type uPlot from 'uplot';

import { bandColour, colourOf, dashOf, gridColour, ILook, lineColour } from './colours';
import { indexAt, placeOf } from './cursor';
import { IMark, LABELS_HEIGHT, paintLevel, paintMarks, withoutOverlaps } from './marks';
import { IDescription, showValues } from './values';

/** One line. Its values are as many as the chart's x; null where there is none. */
export interface ILine extends ILook {
  label: string;
  values: (number | null)[];
}

/** What an axis shows, if that does not follow from the data. */
export interface IAxis {
  range: [number, number];
  ticks: number[];
}

/** What a chart shows. */
export interface IChartData {
  /** Ascending. */
  x: number[];
  lines: ILine[];
  /** The area between two lines that are not drawn themselves. */
  band?: { low: (number | null)[]; high: (number | null)[] };
  xAxis?: IAxis;
  yAxis?: IAxis;
  /** Parts of x that are shaded, with a label at their beginning. */
  marks?: IMark[];
  /** A dashed line at this y. */
  level?: number;
}

/** How a chart looks, and how its numbers are written. */
export interface IChartOptions {
  /** Read out when the chart gets the focus. */
  label: string;
  height: number;
  /** Whether x is in seconds since 1970, rather than plain numbers. */
  isTime?: boolean;
  /** The texts to show for the entry of `x` with this index. */
  describe: (index: number) => IDescription;
  /** The text of a number on the y axis, and on the x axis. */
  format?: (value: number) => string;
  formatX?: (value: number) => string;
  /** `img` for a chart whose label says what it shows; it can be read with the keyboard as well. */
  role?: 'application' | 'img';
  /** Whether there is little room for axes. */
  isSmall?: boolean;
  /** Whether dragging zooms; by default it does. */
  canZoom?: boolean;
  /** Charts with the same x, whose cursors move together. */
  linked?: Set<LineChart>;
  /** Told which entry the cursor is on; -1 for none. */
  onCursor?: (index: number) => void;
  /** What to show if the code that draws charts cannot be fetched; otherwise, why. */
  failure?: string;
}

const X_AXIS = 28;
const X_AXIS_SMALL = 20;
const Y_AXIS = 56;
const Y_AXIS_SMALL = 60;
/** Half of the last text on the axis of x. */
const RIGHT_SMALL = 16;
const MARGIN = 8;
const FONT = '11px system-ui, sans-serif';

/** uPlot, once a chart has needed it: pages without one do not fetch it. */
let Plot: typeof uPlot | undefined;

async function loadPlot(): Promise<void> {
  Plot ??= (await import('uplot')).default;
}

/** Draws `IChartData`, again and again as it grows; a part that the user has zoomed to stays. */
export class LineChart extends Widget {
  constructor(private _options: IChartOptions) {
    super();
    this.addClass('jdist-Chart');
    const { node } = this;
    node.tabIndex = 0;
    node.setAttribute('role', _options.role ?? 'application');
    node.setAttribute('aria-label', _options.label);
    node.style.height = `${_options.height}px`;
    this._values.className = 'jdist-ChartValues';
    this._values.setAttribute('role', 'status');
    this._values.hidden = true;
    document.body.append(this._values); // an output would cut it off
    node.addEventListener('blur', () => this._choose(-1));
    node.addEventListener('pointermove', () => this._lead(true), true);
    _options.linked?.add(this);
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
      this._plot = undefined;
      this._values.remove();
      this._options.linked?.delete(this);
      charts.delete(this.node);
    }
    super.dispose();
  }

  /** Shows other data. */
  show_(data: IChartData): void {
    const shape = JSON.stringify([data.lines.map(({ label, role, order }) => [label, role, order]), !!data.band]);
    const { _plot: plot, _data: old, _chosen: chosen } = this;
    this._data = data;
    this._isUpdating = true;
    const isNew = shape !== this._shape;
    if (isNew) {
      this._shape = shape;
      plot?.destroy();
      this._plot = undefined;
      this._fit();
    } else if (plot) {
      const { min, max } = plot.scales.x;
      const isZoomed = !!old && !data.xAxis && (min! > old.x[0] || max! < old.x[old.x.length - 1]);
      plot.batch(() => plot.setData(columnsOf(data), !isZoomed)); // drawn at once, and not later
    }
    if (chosen >= 0 && isNew) {
      queueMicrotask(() => this._choose(Math.min(chosen, data.x.length - 1))); // a plot is drawn in a microtask
    } else if (chosen >= 0 && !this._isByMouse) {
      this._choose(Math.min(chosen, data.x.length - 1));
    }
    this._isUpdating = false;
  }

  /** Changes what is read out; that of a chart with the focus stays, since it would be read again and again. */
  set label(label: string) {
    const { node } = this;
    if (document.activeElement !== node || !node.getAttribute('aria-label')) {
      node.setAttribute('aria-label', label);
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
    this._lead(false);
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
    } else if (Plot) {
      this.node.replaceChildren();
      this._plot = new Plot(this._plotOptions(this._data, size), columnsOf(this._data), this.node);
    } else {
      void this._load();
    }
  }

  private async _load(): Promise<void> {
    try {
      await loadPlot();
      this._fit();
    } catch (error) {
      console.error('jdist: uPlot was not loaded:', error);
      this.node.textContent = this._options.failure ?? String(error);
    }
  }

  private _plotOptions(data: IChartData, size: { width: number; height: number }): uPlot.Options {
    const { node } = this;
    const { canZoom, isSmall, isTime } = this._options;
    const shown = (): IChartData => this._data ?? data;
    const hidden: uPlot.Series = { stroke: 'transparent', width: 0, points: { show: false } };
    const lines = data.lines.map(line => seriesOf(node, line, data.lines.length));
    const bands = data.band && [{ series: [2, 1] as uPlot.Band.Bounds, fill: () => bandColour(node) }];
    return {
      ...size,
      padding: [data.marks ? LABELS_HEIGHT : null, isSmall ? RIGHT_SMALL : null, null, null],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: canZoom ?? true, y: false } },
      scales: {
        x: { time: isTime ?? false, range: data.xAxis && (() => shown().xAxis!.range) },
        y: { range: data.yAxis && (() => shown().yAxis!.range) }
      },
      axes: this._axes(data),
      series: [{}, ...(data.band ? [hidden, hidden] : []), ...lines],
      bands: bands ?? [],
      hooks: {
        drawClear: [plot => paintMarks(plot, node, shown().marks ?? [])],
        draw: [plot => shown().level !== undefined && paintLevel(plot, node, shown().level!)],
        setCursor: [plot => this._tell(plot.cursor.idx ?? -1)]
      }
    };
  }

  private _axes(data: IChartData): uPlot.Axis[] {
    const { node } = this;
    const { format, formatX, isSmall } = this._options;
    const axis: uPlot.Axis = {
      font: FONT,
      stroke: () => colourOf(node, 'text'),
      gap: isSmall ? 3 : 5,
      grid: { stroke: () => gridColour(node), width: 1 },
      ticks: { stroke: () => gridColour(node), width: 1, size: isSmall ? 4 : 10 }
    };
    const shown = (): IChartData => this._data ?? data;
    const x: uPlot.Axis = {
      ...axis,
      size: isSmall ? X_AXIS_SMALL : X_AXIS,
      values: formatX && ((plot, values) => fitting(plot, values, formatX)),
      splits: data.xAxis && (() => shown().xAxis!.ticks)
    };
    const y: uPlot.Axis = {
      ...axis,
      size: (plot, texts) =>
        Math.max(isSmall ? Y_AXIS_SMALL : Y_AXIS, widestOf(plot, texts ?? []) + (isSmall ? 7 : 15)),
      values: format && ((_, values) => values.map(format)),
      splits: data.yAxis && (() => shown().yAxis!.ticks)
    };
    return [x, y];
  }

  /** From now on, the user reads this chart: its values are shown, and the cursors of the linked ones follow. */
  private _lead(isByMouse: boolean): void {
    this._isByMouse = isByMouse;
    this._isFollowing = false;
  }

  /** Puts the cursor where that of a linked chart is, which shows its values. */
  private _follow(index: number): void {
    this._isByMouse = false;
    this._isFollowing = true;
    this._choose(index);
  }

  /** Puts the cursor on an entry; -1 removes it. */
  private _choose(index: number): void {
    const x = this._data?.x[index];
    this._plot?.setCursor(x === undefined ? { left: -10, top: -10 } : { left: this._plot.valToPos(x, 'x'), top: 10 });
  }

  /** Shows the values of an entry beside the cursor, and moves the cursors of linked charts there. */
  private _tell(index: number): void {
    const hasMoved = index !== this._chosen;
    this._chosen = index;
    if (hasMoved) {
      this._options.onCursor?.(index);
    }
    this._values.hidden = index < 0 || this._isFollowing;
    if (!this._isFollowing) {
      this._options.linked?.forEach(each => each !== this && each._follow(index));
    }
    if (this._values.hidden || !this._plot) {
      return;
    }
    // What changes by itself is not read out.
    this._values.setAttribute('aria-live', this._isUpdating ? 'off' : 'polite');
    showValues(this._values, this._options.describe(index));
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
  private _isByMouse = false;
  /** Whether the cursor follows that of another chart. */
  private _isFollowing = false;
  private _isUpdating = false;
  private readonly _resized: ResizeObserver;
  private readonly _values = document.createElement('div');
}

const charts = new Map<Element, LineChart>();

/** Draws all charts in the colours of the present theme. */
export function recolourCharts(): void {
  charts.forEach(chart => chart.recolour());
}

/** The width in pixels of the widest of these texts on an axis. */
function widestOf(plot: uPlot, texts: string[]): number {
  const { ctx } = plot;
  ctx.save();
  ctx.font = FONT;
  const width = Math.max(0, ...texts.map(text => ctx.measureText(text).width));
  ctx.restore();
  return Math.ceil(width);
}

/** The texts of the numbers on the axis of x, as far as there is room. */
function fitting(plot: uPlot, values: number[], format: (value: number) => string): string[] {
  const { ctx } = plot;
  ctx.save();
  ctx.font = FONT;
  const widthOf = (text: string): number => ctx.measureText(text).width;
  const texts = withoutOverlaps(
    values.map(format),
    values.map(value => plot.valToPos(value, 'x')),
    widthOf
  );
  ctx.restore();
  return texts;
}

function seriesOf(node: HTMLElement, line: ILine, count: number): uPlot.Series {
  return {
    label: line.label,
    stroke: () => lineColour(node, line, count),
    width: line.role === 'main' ? 2 : line.role === 'own' ? 1.5 : 1,
    dash: dashOf(line),
    points: { show: false, filter: (plot, series) => alone(plot.data[series]) },
    spanGaps: false
  };
}

/** The values without a neighbour, which are no line and so are drawn as points. */
function alone(values: ArrayLike<number | null | undefined>): number[] | null {
  const isKnown = (i: number): boolean => typeof values[i] === 'number';
  const found = Array.from(values, (_, i) => i).filter(i => isKnown(i) && !isKnown(i - 1) && !isKnown(i + 1));
  return found.length ? found : null;
}

/** The data as uPlot takes it: x, the band's lines, and the others. */
function columnsOf(data: IChartData): uPlot.AlignedData {
  const band = data.band ? [data.band.low, data.band.high] : [];
  return [data.x, ...band, ...data.lines.map(line => line.values)];
}
