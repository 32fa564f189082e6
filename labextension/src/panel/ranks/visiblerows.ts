/** The rows of a scrolling list that can be seen, so that only those are drawn. */

import * as React from 'react';

/** Rows that are drawn above and below those that can be seen, so that scrolling shows no gap. */
const OVERSCAN = 8;

export interface IVisibleRows {
  /** The width of the list in pixels. */
  width: number;
  /** Of a list of so many rows, the first one to draw, and the first one after those. */
  range: (count: number) => [first: number, end: number];
}

/**
 * Follows a scrolling element whose rows are all `height` pixels high.
 *
 * JupyterLab's WindowedList is not used: it needs a Lumino widget for each row, draws in animation frames and detaches
 * rows that are scrolled out of view. The row that has the focus would be lost, and with it every key that is pressed
 * before the next frame; and its wrapping elements stand between a grid and its rows, where ARIA allows none.
 */
export function useVisibleRows(scroller: React.RefObject<HTMLElement>, height: number): IVisibleRows {
  const [seen, setSeen] = React.useState({ top: 0, size: 0, width: 0 });
  React.useLayoutEffect(() => {
    const node = scroller.current;
    if (!node) {
      return;
    }
    const measure = (): void => {
      const top = Math.floor(node.scrollTop / height);
      const size = Math.ceil(node.clientHeight / height);
      const width = node.clientWidth;
      setSeen(was => (was.top === top && was.size === size && was.width === width ? was : { top, size, width }));
    };
    measure();
    node.addEventListener('scroll', measure, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(node);
    return () => {
      node.removeEventListener('scroll', measure);
      observer.disconnect();
    };
  }, [height]);
  return { width: seen.width, range: count => rowRange(count, seen.top, seen.size) };
}

/** Which of `count` rows to draw if `size` of them fit into the view, and `top` have been scrolled out of it. */
export function rowRange(count: number, top: number, size: number): [first: number, end: number] {
  const first = Math.max(0, Math.min(top, count - size) - OVERSCAN);
  return [first, Math.min(count, first + size + 2 * OVERSCAN)];
}
