/** The mouse on a timeline: the wheel zooms, dragging moves, a click chooses a call, hovering describes it. */

import { callAt } from './find';
import { operatorAt } from './paintoperators';
import { Trace } from './trace';
import { IViewport, LEFT, MISS, momentAt } from './viewport';

/** The zoom factor of one step of the wheel; a double click is two steps. */
export const ZOOM = 1.4;

/** The timeline that the mouse controls. */
export interface IMouseTarget {
  readonly trace: Trace | undefined;
  /** The viewport that was painted last. */
  readonly seen: IViewport;
  /** Zooms by this factor around a moment. */
  zoom(factor: number, about: number): void;
  /** Shows what is between two moments. */
  see(start: number, end: number): void;
  /** The mouse is over a call, at this point of the page, or over a row's operator there; -1 for no call. */
  hover(call: number, at?: { x: number; y: number }, operator?: [number, number]): void;
  choose(call: number): void;
}

export class Mouse {
  constructor(
    private readonly _canvas: HTMLCanvasElement,
    private readonly _scroll: HTMLElement,
    private readonly _view: IMouseTarget
  ) {
    _canvas.addEventListener('wheel', event => this._wheel(event), { passive: false });
    _canvas.addEventListener('pointerdown', event => this._press(event));
    _canvas.addEventListener('pointermove', event => this._move(event));
    _canvas.addEventListener('pointerup', event => this._release(event));
    _canvas.addEventListener('pointerleave', () => _view.hover(-1));
    _canvas.addEventListener('dblclick', event => _view.zoom(ZOOM * ZOOM, momentAt(event.offsetX, _view.seen)));
  }

  private _wheel(event: WheelEvent): void {
    const { seen } = this._view;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this._view.zoom(event.deltaY < 0 ? ZOOM : 1 / ZOOM, momentAt(event.offsetX, seen));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const by = ((event.deltaX || event.deltaY) / seen.width) * (seen.end - seen.start);
      this._view.see(seen.start + by, seen.end + by);
    }
  }

  private _press(event: PointerEvent): void {
    if (event.button === 0) {
      this._canvas.setPointerCapture(event.pointerId);
      const { start } = this._view.seen;
      this._pressed = { x: event.clientX, y: event.clientY, start, top: this._scroll.scrollTop };
    }
  }

  private _move(event: PointerEvent): void {
    const pressed = this._pressed;
    if (!pressed) {
      const { trace, seen } = this._view;
      const operator = trace && operatorAt(event.offsetX, event.offsetY, trace, seen);
      this._view.hover(operator ? -1 : this._at(event), { x: event.clientX, y: event.clientY }, operator);
      return;
    }
    const [dx, dy] = [event.clientX - pressed.x, event.clientY - pressed.y];
    if (Math.abs(dx) > MISS || Math.abs(dy) > MISS) {
      const { seen } = this._view;
      const width = seen.end - seen.start;
      const start = pressed.start - (dx / (seen.width - LEFT)) * width;
      this._scroll.scrollTop = pressed.top - dy;
      this._view.see(start, start + width);
    }
  }

  private _release(event: PointerEvent): void {
    const pressed = this._pressed;
    this._pressed = undefined;
    if (pressed && Math.abs(event.clientX - pressed.x) <= MISS && Math.abs(event.clientY - pressed.y) <= MISS) {
      this._view.choose(this._at(event));
    }
  }

  private _at(event: PointerEvent): number {
    const { trace, seen } = this._view;
    return trace ? callAt(event.offsetX, event.offsetY, trace, seen) : -1;
  }

  private _pressed?: { x: number; y: number; start: number; top: number };
}
