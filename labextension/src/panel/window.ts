/** A window: which rows of a list that scrolls can be seen. */

import * as React from 'react';

/** Rows that are drawn beyond what is seen, so that a small move shows no gap. */
const BEYOND = 8;

export interface IWindow {
  /** Pixels. */
  width: number;
  /** From which of so many rows on, and up to which, they need to be drawn. */
  of: (count: number) => { first: number; last: number };
}

/** What of a scroller's rows is seen; `height` is that of one row in pixels. */
export function useWindow(scroller: React.RefObject<HTMLElement>, height: number): IWindow {
  const [seen, setSeen] = React.useState({ top: 0, size: 0, width: 0 });
  React.useLayoutEffect(() => {
    const node = scroller.current;
    if (!node) {
      return;
    }
    const look = (): void => {
      const top = Math.floor(node.scrollTop / height);
      const size = Math.ceil(node.clientHeight / height);
      const width = node.clientWidth;
      setSeen(was => (was.top === top && was.size === size && was.width === width ? was : { top, size, width }));
    };
    look();
    node.addEventListener('scroll', look, { passive: true });
    const observer = new ResizeObserver(look);
    observer.observe(node);
    return () => {
      node.removeEventListener('scroll', look);
      observer.disconnect();
    };
  }, [height]);
  const of = (count: number): { first: number; last: number } => {
    const first = Math.max(0, Math.min(seen.top, count - seen.size) - BEYOND);
    return { first, last: Math.min(count, first + seen.size + 2 * BEYOND) };
  };
  return { width: seen.width, of };
}
