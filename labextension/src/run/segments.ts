/** What ranks wrote and displayed, as widgets: one for each segment, made again only when it has changed. */

import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import { TranslationBundle } from '@jupyterlab/translation';
import { Panel, PanelLayout, Widget } from '@lumino/widgets';

import { writeAnsi } from './ansi';
import { cut, has, IAlike, IShown, joined, Segment } from './model';
import { Choice } from './tabs';

const LONGEST_RANKS = 14;

/** What a bundle holds besides the structure, and whether its notebook is trusted. */
export interface ISource {
  html: unknown;
  trusted: boolean;
}

/** The segments of all ranks, or of one. */
export class SegmentList extends Panel {
  constructor(
    private _rendermime: IRenderMimeRegistry,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-RunSegments');
  }

  /** Shows these; widgets of segments that are as they were stay as they are. Returns how many lines there are. */
  show_(segments: Segment[], choice: Choice, source: ISource): number {
    const wanted = segments.flatMap(segment => seenBy(segment, choice));
    const keys = wanted.map(segment => keyOf(segment, choice, source));
    const held = new Map<string, Widget[]>();
    this._keys.forEach((key, i) => held.set(key, [...(held.get(key) ?? []), this.widgets[i]]));
    const next = wanted.map((segment, i) => held.get(keys[i])?.shift() ?? this._make(segment, choice, source));
    for (const left of held.values()) {
      left.forEach(widget => widget.dispose());
    }
    next.forEach((widget, i) => {
      if (this.widgets[i] !== widget) {
        (this.layout as PanelLayout).insertWidget(i, widget);
      }
    });
    this._keys = keys;
    return wanted.reduce((sum, segment) => sum + linesOf(segment), 0);
  }

  private _make(segment: Segment, choice: Choice, source: ISource): Widget {
    const widget = new Panel();
    widget.addClass('jdist-RunSegment');
    const who = ranksIn(segment);
    if (choice === 'all' && who) {
      widget.addWidget(this._gutter(who, isStderr(segment)));
    }
    widget.addWidget(this._content(segment, source));
    const isPicture = segment.kind === 'shown' && cut(source.html, segment.piece).startsWith('<img ');
    widget.toggleClass('jdist-mod-picture', isPicture);
    return widget;
  }

  private _gutter(ranks: string, isError: boolean): Widget {
    const gutter = new Widget();
    gutter.addClass('jdist-RunRanks');
    gutter.node.textContent = ranks.length > LONGEST_RANKS ? `${ranks.slice(0, LONGEST_RANKS - 1)}…` : ranks;
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
        return this._text(segment.text, segment.stderr);
      case 'alike':
        return this._text(together(segment), segment.stderr);
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
    widget.node.append(pre(text));
    return widget;
  }

  private _gap(text: string): Widget {
    const widget = new Widget();
    widget.addClass('jdist-RunGap');
    widget.node.textContent = text;
    return widget;
  }

  /** The richest that Lab can show, with what the notebook's trust allows. */
  private _shown(segment: IShown, source: ISource): Widget {
    const html = cut(source.html, segment.piece);
    const data = { ...segment.data, ...(html ? { 'text/html': html } : {}) };
    const mime = this._rendermime.preferredMimeType(data, source.trusted ? 'any' : 'ensure');
    if (!mime) {
      return this._gap(this._trans.__('nothing here can show this display: %1', Object.keys(data).join(', ')));
    }
    const renderer = this._rendermime.createRenderer(mime);
    renderer.addClass('jdist-RunDisplay');
    void renderer.renderModel(new MimeModel({ data, metadata: segment.metadata ?? {}, trusted: source.trusted }));
    return renderer;
  }

  private _keys: string[] = [];
}

/** Markup of the bundle's HTML, sanitized by Lab unless the notebook is trusted. */
export function markup(rendermime: IRenderMimeRegistry, html: string, trusted: boolean): Widget {
  const renderer = rendermime.createRenderer('text/html');
  void renderer.renderModel(new MimeModel({ data: { 'text/html': html }, trusted }));
  return renderer;
}

/** Of one rank, lines that stand together with other ranks' are its own. */
function seenBy(segment: Segment, choice: Choice): Segment[] {
  if (choice === 'all') {
    return [segment];
  }
  if (segment.kind === 'alike') {
    const own = segment.texts.find(each => has(each.ranks, choice));
    return own ? [{ kind: 'text', ranks: own.ranks, text: own.text, stderr: segment.stderr }] : [];
  }
  return !segment.ranks || has(segment.ranks, choice) ? [segment] : [];
}

function keyOf(segment: Segment, choice: Choice, source: ISource): string {
  const kind = choice === 'all' ? 'all' : 'one';
  if (segment.kind !== 'shown') {
    return kind + JSON.stringify(segment);
  }
  return [kind, source.trusted, JSON.stringify({ ...segment, piece: null }), cut(source.html, segment.piece)].join(
    '\0'
  );
}

function ranksIn(segment: Segment): string {
  return segment.kind === 'alike' ? segment.texts.map(each => each.ranks).join(',') : (segment.ranks ?? '');
}

function isStderr(segment: Segment): boolean {
  return (segment.kind === 'text' || segment.kind === 'alike') && !!segment.stderr;
}

function linesOf(segment: Segment): number {
  const text = segment.kind === 'text' ? segment.text : segment.kind === 'alike' ? segment.texts[0].text : '';
  return text ? text.split('\n').length : 1;
}

function together(segment: IAlike): string {
  const texts = segment.texts.map(each => each.text.split('\n'));
  return texts[0].map((_, i) => joined(texts.map(lines => lines[i] ?? ''))).join('\n');
}

function pre(text: string): HTMLElement {
  const node = document.createElement('pre');
  writeAnsi(node, text);
  return node;
}

function badge(text: string): HTMLElement {
  const node = document.createElement('small');
  node.textContent = text;
  return node;
}
