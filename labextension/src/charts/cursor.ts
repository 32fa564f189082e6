/** Where the cursor of a chart goes, and where the text beside it stands. Pure. */

const GAP = 12;

/** The entry that a key leads to from `index` (-1: no entry is chosen); undefined for a key without a meaning. */
export function indexAt(key: string, index: number, size: number): number | undefined {
  const far = Math.max(1, Math.round(size / 10));
  switch (key) {
    case 'ArrowRight':
      return Math.min(size - 1, index + 1);
    case 'ArrowLeft':
      return index < 0 ? size - 1 : Math.max(0, index - 1);
    case 'PageDown':
      return Math.min(size - 1, index + far);
    case 'PageUp':
      return index < 0 ? size - 1 : Math.max(0, index - far);
    case 'Home':
      return 0;
    case 'End':
      return size - 1;
    case 'Escape':
      return index < 0 ? undefined : -1;
  }
  return undefined;
}

/** The left edge of a text of `width` beside a cursor at `at`: right of it, or left where there is more room. */
export function placeOf(at: number, width: number, room: number): number {
  const right = at + GAP;
  return right + width <= room ? right : Math.max(0, at - GAP - width);
}
