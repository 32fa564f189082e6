/** Keeps a box that scrolls at its end while its content grows, until the reader scrolls up. */

/** The box counts as scrolled to its end within so many pixels of it. */
const NEAR = 24;

/** Follows growth whenever it comes: content may be laid out later, as pictures and HTML are, or while it is hidden. */
export class EndFollower {
  constructor(
    private _box: HTMLElement,
    private _content: HTMLElement
  ) {
    _box.addEventListener('scroll', () => this._handleScroll());
    this._observer.observe(_content);
  }

  /** Call this after the content has changed: scrolls to the end, or leaves the reader where they are. */
  update(): void {
    if (this._box.scrollTop !== 0) {
      this._handleScroll(); // the browser tells of it at the next frame only
    }
    if (this._isFollowing) {
      this._box.scrollTop = this._box.scrollHeight;
      this._top = this._box.scrollTop;
    } else if (this._box.scrollTop !== this._top) {
      this._box.scrollTop = this._top; // it was hidden, which sets it to 0
    }
  }

  dispose(): void {
    this._observer.disconnect();
  }

  /** Growth does not scroll the box, so it is the reader who moves it up. */
  private _handleScroll(): void {
    const { clientHeight, scrollHeight, scrollTop } = this._box;
    if (!this._content.offsetHeight) {
      return; // hidden
    }
    if (scrollTop + clientHeight >= scrollHeight - NEAR) {
      this._isFollowing = true;
    } else if (scrollTop < this._top) {
      this._isFollowing = false;
    }
    this._top = scrollTop;
  }

  private _isFollowing = true;
  private _top = 0;
  private readonly _observer = new ResizeObserver(() => this.update());
}
