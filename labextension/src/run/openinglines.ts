/** One line for the lines of many ranks, such as their progress bars; it opens to show them by rank. */

import { IRenderMimeRegistry, renderText } from '@jupyterlab/rendermime';
import { Widget } from '@lumino/widgets';

import { DifferingLines, linesByRank } from './segments';

/** Stays open, and keeps the focus, while the lines change. */
export class OpeningLines extends Widget {
  constructor(private _rendermime: IRenderMimeRegistry) {
    super({ node: document.createElement('details') });
    this.addClass('jdist-RunOpening');
    this.node.append(this._summary, this._lines);
    this.node.addEventListener('toggle', () => this._draw());
  }

  show_(segment: DifferingLines): void {
    this._segment = segment;
    if (this._summary.textContent !== segment.text) {
      this._summary.textContent = segment.text;
    }
    this._draw();
  }

  /** The lines by rank are made only while they can be seen. */
  private _draw(): void {
    const { open } = this.node as HTMLDetailsElement;
    const source = open && this._segment ? linesByRank(this._segment) : '';
    if (source === this._drawn) {
      return;
    }
    this._drawn = source;
    const host = document.createElement('div');
    host.className = 'jp-RenderedText jdist-RunText';
    void renderText({ host, sanitizer: this._rendermime.sanitizer, source }).then(() => {
      if (this._drawn === source) {
        this._lines.replaceWith(host);
        this._lines = host;
      }
    });
  }

  private _summary = document.createElement('summary');
  private _lines = document.createElement('div');
  private _segment: DifferingLines | undefined;
  private _drawn = '';
}
