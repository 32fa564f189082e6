/** What ranks wrote and displayed: a widget for each segment, made again only if the segment has changed. */

import { IRenderMimeRegistry, MimeModel, renderText } from '@jupyterlab/rendermime';
import { TranslationBundle } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Panel, PanelLayout, Widget } from '@lumino/widgets';

import { IDisplaySegment } from '../generated/server';
import { RankChoice, Segment } from './model';
import { OpeningLines } from './openinglines';
import { htmlOf, ISource, isStderr, keyOf, lineCount, opens, ranksIn, segmentsFor } from './segments';

const LONGEST_RANKS = 14;

/** The segments of all ranks, or of one of them. */
export class SegmentList extends Panel {
  constructor(
    private _rendermime: IRenderMimeRegistry,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-RunSegments');
  }

  /**
   * Shows the segments; widgets of unchanged segments stay as they are. Returns the number of lines.
   *
   * Lines of more than `maxLines` ranks that are alike are one line, which opens.
   */
  show_(segments: Segment[], choice: RankChoice, source: ISource, maxLines: number): number {
    this._maxLines = maxLines;
    const wanted = segments.flatMap(segment => segmentsFor(segment, choice));
    const keys = wanted.map(segment => keyOf(segment, choice, source, maxLines));
    const known = new Map<string, Widget[]>();
    this._keys.forEach((key, i) => known.set(key, [...(known.get(key) ?? []), this.widgets[i]]));
    const next = wanted.map((segment, i) => known.get(keys[i])?.shift() ?? this._make(segment, choice, source));
    for (const left of known.values()) {
      left.forEach(widget => widget.dispose());
    }
    next.forEach((widget, i) => {
      if (this.widgets[i] !== widget) {
        (this.layout as PanelLayout).insertWidget(i, widget);
      }
    });
    wanted.forEach((segment, i) => this._change(next[i], segment));
    this._keys = keys;
    return wanted.reduce((sum, segment) => sum + lineCount(segment), 0);
  }

  private _make(segment: Segment, choice: RankChoice, source: ISource): Widget {
    const widget = new Panel();
    widget.addClass('jdist-RunSegment');
    const who = ranksIn(segment);
    if (choice === 'all' && who) {
      const isWhole = segment.kind === 'text' && !!segment.texts && !opens(segment, this._maxLines); // it tells whose each number is
      widget.addWidget(this._gutter(who, isStderr(segment), isWhole));
    }
    widget.addWidget(this._content(segment, source));
    const isPicture = segment.kind === 'shown' && htmlOf(source, segment.piece).startsWith('<img ');
    widget.toggleClass('jdist-mod-picture', isPicture);
    return widget;
  }

  /** Shows what is new in a segment that is changed in its place. */
  private _change(widget: Widget, segment: Segment): void {
    const lines = [...widget.children()].find(child => child instanceof OpeningLines);
    if (lines && opens(segment, this._maxLines)) {
      lines.show_(segment);
    }
  }

  private _gutter(ranks: string, isError: boolean, isWhole: boolean): Widget {
    const gutter = new Widget();
    gutter.addClass('jdist-RunRanks');
    gutter.node.textContent =
      !isWhole && ranks.length > LONGEST_RANKS ? `${ranks.slice(0, LONGEST_RANKS - 1)}…` : ranks;
    gutter.node.title = isError
      ? this._trans.__('ranks %1, standard error', ranks)
      : this._trans._n('rank %2', 'ranks %2', /[-,]/.test(ranks) ? 2 : 1, ranks);
    if (isError) {
      gutter.node.append(badge(this._trans.__('err')));
    }
    return gutter;
  }

  private _content(segment: Segment, source: ISource): Widget {
    switch (segment.kind) {
      case 'text':
        if (opens(segment, this._maxLines)) {
          return new OpeningLines(this._rendermime);
        }
        return this._text(segment.text, segment.stderr);
      case 'gap':
        return this._gap(segment.text);
      case 'shown':
        return this._shown(segment, source);
    }
  }

  private _text(text: string, isError = false): Widget {
    const widget = new Widget();
    widget.addClass('jp-RenderedText');
    widget.addClass('jdist-RunText');
    widget.toggleClass('jdist-mod-stderr', isError);
    void renderText({ host: widget.node, sanitizer: this._rendermime.sanitizer, source: text });
    return widget;
  }

  private _gap(text: string): Widget {
    const widget = new Widget();
    widget.addClass('jdist-RunGap');
    widget.node.textContent = text;
    return widget;
  }

  /** The richest representation that JupyterLab can show; an untrusted notebook allows fewer. */
  private _shown(segment: IDisplaySegment, source: ISource): Widget {
    const html = htmlOf(source, segment.piece);
    const data = { ...segment.data, ...(html ? { 'text/html': html } : {}) } as ReadonlyPartialJSONObject;
    const mime = this._rendermime.preferredMimeType(data, source.trusted ? 'any' : 'ensure');
    if (!mime) {
      return this._gap(this._trans.__('this display cannot be shown here: %1', Object.keys(data).join(', ')));
    }
    const metadata = (segment.metadata ?? {}) as ReadonlyPartialJSONObject;
    const renderer = this._rendermime.createRenderer(mime);
    renderer.addClass('jdist-RunDisplay');
    void renderer.renderModel(new MimeModel({ data, metadata, trusted: source.trusted }));
    return renderer;
  }

  private _keys: string[] = [];
  private _maxLines = 0;
}

/** Renders a piece of the bundle's HTML; JupyterLab sanitizes it unless the notebook is trusted. */
export function renderHtml(rendermime: IRenderMimeRegistry, html: string, trusted: boolean): Widget {
  const renderer = rendermime.createRenderer('text/html');
  void renderer.renderModel(new MimeModel({ data: { 'text/html': html }, trusted }));
  return renderer;
}

function badge(text: string): HTMLElement {
  const node = document.createElement('small');
  node.textContent = text;
  return node;
}
