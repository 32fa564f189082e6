/** The timeline of a run, with zoom, scrolling and descriptions of calls, by mouse and by keyboard. */

import { TranslationBundle } from '@jupyterlab/translation';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { describeCall } from './describe';
import { across, beside, firstFrom } from './find';
import { IMouseTarget, Mouse, ZOOM } from './mouse';
import { paint, themeOf } from './paint';
import { Trace } from './trace';
import { IViewport, LEFT, TOP } from './viewport';

const TALLEST = 26;
const LOWEST = 14;
/** So many times taller are rows with operators below the calls. */
const WITH_OPERATORS = 2.5;
/** The viewport is at least so many ticks wide. */
const CLOSEST = 50;

/** A canvas with a headline, buttons, and the description of the chosen call. */
export class TimelineView extends Widget implements IMouseTarget {
  /** `height` of the canvas in pixels; without it, the canvas fills the widget. */
  constructor(
    private _trans: TranslationBundle,
    private _height?: number
  ) {
    super();
    this.addClass('jdist-Timeline');
    this.node.append(this._head, this._bar(), this._scroll, this._description);
    this._head.className = 'jdist-TimelineHead';
    this._description.className = 'jdist-TimelineDescription';
    this._description.setAttribute('role', 'status');
    this._scroll.className = 'jdist-TimelineScroll';
    this._scroll.append(this._canvas, this._spacer);
    this._tip.className = 'jdist-TimelineTip';
    this._tip.hidden = true;
    this.node.append(this._tip);
    this._canvas.tabIndex = 0;
    this._canvas.setAttribute('role', 'application');
    this._canvas.setAttribute('aria-roledescription', this._trans.__('timeline'));
    all.set(this._canvas, this);
    new Mouse(this._canvas, this._scroll, this);
    this._scroll.addEventListener('scroll', () => this.update());
    this._canvas.addEventListener('focus', () => this.update());
    this._canvas.addEventListener('blur', () => this.update());
    this._sizes = new ResizeObserver(() => this.update());
    this._sizes.observe(this._scroll);
  }

  /** Shows this trace; the viewport stays as it is if the trace is of the same run. */
  set trace(trace: Trace) {
    const isSame = this._trace?.data.run === trace.data.run && this._trace.data.cluster === trace.data.cluster;
    this._trace = trace;
    this._chosen = this._hovered = -1;
    if (!isSame) {
      this.seen = { ...this.seen, start: 0, end: trace.span };
    }
    const { headline, finding, notes, absent } = trace.data;
    const missing = Object.entries(absent).map(([rank, why]) => this._trans.__('rank %1: %2', rank, why));
    const lines = [headline, finding, ...notes, ...missing].map((text, i) => {
      const line = document.createElement(i ? 'div' : 'strong');
      line.textContent = text;
      return line;
    });
    this._head.replaceChildren(...lines);
    this._canvas.setAttribute('aria-label', `${headline}; ${finding}. ${this._help()}`);
    this._canvas.dataset.calls = String(trace.began.length);
    this._describeChosen();
    this.update();
  }

  get trace(): Trace | undefined {
    return this._trace;
  }

  /** The viewport that was painted last. */
  seen: IViewport = { start: 0, end: 1, top: 0, width: LEFT + 1, height: 0, row: TALLEST };

  dispose(): void {
    this._sizes.disconnect();
    super.dispose();
  }

  /** Shows the whole run. */
  fit(): void {
    if (this._trace) {
      this.see(0, this._trace.span);
    }
  }

  /** Zooms by this factor around a moment; by default, around the middle of the viewport. */
  zoom(factor: number, about = (this.seen.start + this.seen.end) / 2): void {
    const { start, end } = this.seen;
    this.see(about - (about - start) / factor, about + (end - about) / factor);
  }

  /** Shows what is between two moments, within the run. */
  see(start: number, end: number): void {
    if (!this._trace) {
      return;
    }
    const { span } = this._trace;
    const width = Math.min(span, Math.max(CLOSEST, end - start));
    const from = Math.min(Math.max(0, start), span - width);
    this.seen = { ...this.seen, start: from, end: from + width };
    this.update();
  }

  /** Describes a call, or a row's operator, in a tooltip beside a point of the page; -1 for no call. */
  hover(call: number, at?: { x: number; y: number }, operator?: [number, number]): void {
    this._tip.hidden = call < 0 && !operator;
    if (call !== this._hovered) {
      this._hovered = call;
      this.update();
    }
    this._tip.textContent = operator ? this._textOfOperator(...operator) : this._textOf(call);
    if (at && (call >= 0 || operator)) {
      const box = this.node.getBoundingClientRect();
      const [x, y] = [at.x - box.left, at.y - box.top];
      const left = x + 16 + this._tip.offsetWidth > box.width ? x - 12 - this._tip.offsetWidth : x + 16;
      this._tip.style.transform = `translate(${Math.max(0, left)}px, ${y + 12}px)`;
    }
  }

  /** Marks a call and those it belongs together with, and describes it below the canvas; -1 for none. */
  choose(call: number): void {
    this._chosen = call;
    this._describeChosen();
    this.update();
  }

  /** Handles a key; returns whether it has a meaning here. */
  onKey(event: KeyboardEvent): boolean {
    if (event.target !== this._canvas || event.ctrlKey || event.metaKey || event.altKey || !this._trace) {
      return false;
    }
    const act = this._keys(event.shiftKey)[event.key];
    if (!act) {
      return false;
    }
    event.preventDefault();
    this.hover(-1); // the mouse may still be over some call
    act();
    return true;
  }

  /** The view that this canvas belongs to. */
  static of(canvas: Element): TimelineView | undefined {
    return all.get(canvas);
  }

  protected onUpdateRequest(_: Message): void {
    if (this.isVisible && this._trace) {
      this._paint();
    }
  }

  protected onAfterShow(_: Message): void {
    this.update();
  }

  protected onResize(_: Message): void {
    this.update();
  }

  private _keys(shift: boolean): Record<string, () => void> {
    const { start, end } = this.seen;
    const move = (part: number) => () => this.see(start + part * (end - start), end + part * (end - start));
    return {
      ArrowRight: shift ? move(0.2) : () => this._step(1),
      ArrowLeft: shift ? move(-0.2) : () => this._step(-1),
      ArrowDown: () => this._row(1),
      ArrowUp: () => this._row(-1),
      '+': () => this.zoom(ZOOM, this._centre()),
      '=': () => this.zoom(ZOOM, this._centre()),
      '-': () => this.zoom(1 / ZOOM, this._centre()),
      '0': () => this.fit(),
      Home: () => this.fit(),
      Escape: () => this.choose(-1)
    };
  }

  private _help(): string {
    return this._trans.__('Arrow keys choose a call, plus and minus zoom, Shift with arrows moves, 0 shows all');
  }

  private _bar(): HTMLElement {
    const bar = document.createElement('div');
    bar.className = 'jdist-TimelineBar';
    bar.setAttribute('role', 'toolbar');
    bar.setAttribute('aria-label', this._trans.__('Timeline'));
    const buttons: [string, string, () => void][] = [
      ['+', this._trans.__('Zoom in'), () => this.zoom(ZOOM * ZOOM)],
      ['−', this._trans.__('Zoom out'), () => this.zoom(1 / ZOOM / ZOOM)],
      [this._trans.__('All'), this._trans.__('Show the whole run'), () => this.fit()]
    ];
    for (const [text, title, act] of buttons) {
      bar.append(this.button(text, title, act));
    }
    const hint = document.createElement('span');
    hint.textContent = this._trans.__('▨ waits  ■ works · Ctrl+wheel zooms, dragging moves');
    bar.append(hint);
    this._buttons = bar;
    return bar;
  }

  /** Makes a button for the toolbar. */
  button(text: string, title: string, act: () => void): HTMLButtonElement {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jp-Button jp-mod-styled jp-mod-minimal';
    button.textContent = text;
    button.title = title;
    button.setAttribute('aria-label', title);
    button.addEventListener('click', act);
    return button;
  }

  /** Adds a button to the toolbar, behind the others. */
  addButton(text: string, title: string, act: () => void): void {
    this._buttons?.insertBefore(this.button(text, title, act), this._buttons.lastElementChild);
  }

  /** Chooses the next call of the row and reveals it; the first visible one if none is chosen. */
  private _step(by: 1 | -1): void {
    const trace = this._trace!;
    const row = Math.floor(this._scroll.scrollTop / this.seen.row);
    this.choose(this._chosen < 0 ? firstFrom(row, this.seen.start, trace) : beside(this._chosen, by, trace));
    this._reveal();
  }

  /** Chooses the next rank's call that belongs together with the chosen one. */
  private _row(by: 1 | -1): void {
    if (this._chosen < 0) {
      return this._step(1);
    }
    this.choose(across(this._chosen, by, this._trace!));
    this._reveal();
  }

  private _reveal(): void {
    const trace = this._trace!;
    if (this._chosen < 0) {
      return;
    }
    const [began, ended] = [trace.began[this._chosen], trace.ended[this._chosen]];
    const { start, end, row } = this.seen;
    const width = end - start;
    if (began < start || Math.min(ended, began + width) > end) {
      this.see(began - width / 4, began + (width * 3) / 4);
    }
    const y = trace.rowOf(this._chosen) * row;
    const room = this._scroll.clientHeight - TOP - row;
    this._scroll.scrollTop = Math.min(y, Math.max(this._scroll.scrollTop, y - room));
  }

  private _centre(): number {
    const trace = this._trace!;
    return this._chosen < 0
      ? (this.seen.start + this.seen.end) / 2
      : (trace.began[this._chosen] + trace.work[this._chosen]) / 2;
  }

  private _describeChosen(): void {
    this._description.textContent = this._textOf(this._chosen).replace(/\n/g, ' · ');
  }

  private _textOf(call: number): string {
    return this._trace && call >= 0 ? describeCall(call, this._trace, this._trans) : '';
  }

  private _textOfOperator(row: number, operator: number): string {
    const { data, operators } = this._trace!;
    return operators?.describe(operator, data.rows[row].rank, data.tick, this._trans) ?? '';
  }

  private _paint(): void {
    const trace = this._trace!;
    const rows = trace.data.rows.length;
    const room = this._height ?? this._scroll.clientHeight;
    const parts = trace.operators ? WITH_OPERATORS : 1;
    const tall = Math.min(TALLEST * parts, Math.max(LOWEST * parts, Math.floor((room - TOP) / Math.max(1, rows))));
    const whole = TOP + rows * tall;
    if (this._height) {
      this._scroll.style.flex = 'none';
      this._scroll.style.height = `${Math.min(this._height, whole)}px`;
    }
    const [width, height] = [this._scroll.clientWidth, Math.min(this._scroll.clientHeight, whole)];
    this._spacer.style.height = `${Math.max(0, whole - height)}px`;
    const scale = window.devicePixelRatio || 1;
    if (this._canvas.width !== Math.round(width * scale) || this._canvas.height !== Math.round(height * scale)) {
      this._canvas.width = Math.round(width * scale);
      this._canvas.height = Math.round(height * scale);
      this._canvas.style.width = `${width}px`;
      this._canvas.style.height = `${height}px`;
    }
    const context = this._canvas.getContext('2d');
    if (!context || !width || !height) {
      return;
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.seen = { ...this.seen, top: this._scroll.scrollTop, width, height, row: tall };
    paint(context, trace, this.seen, themeOf(this.node), this._hovered >= 0 ? this._hovered : this._chosen);
  }

  private _trace?: Trace;
  private _chosen = -1;
  private _hovered = -1;
  private _buttons?: HTMLElement;
  private readonly _head = document.createElement('div');
  private readonly _scroll = document.createElement('div');
  private readonly _spacer = document.createElement('div');
  private readonly _canvas = document.createElement('canvas');
  private readonly _description = document.createElement('div');
  private readonly _tip = document.createElement('div');
  private readonly _sizes: ResizeObserver;
}

const all = new WeakMap<Element, TimelineView>();
