"""HTML of what the ranks of a run wrote: lines, displays and pictures, within a size."""

import base64
import html
import itertools
from collections.abc import Iterable, Sequence

from jdist.core.outcome import OutputLine, RichOutput
from jdist.notebook.output.body import LONGEST_TEXT, Chunk, indented, merged_parts, notes, prefix, text_of
from jdist.notebook.output.transcript import Block, BlockPart
from jdist.notebook.text import ansi, markup
from jdist.notebook.text.limits import cut, fit, size

IMAGES_LIMIT = 2_000_000  # Characters of images that one output holds.
_FOLD, _SHOWN = 80, 24  # A sequence of more than `_FOLD` lines is folded but for its last `_SHOWN`.
_OVERHEAD = 450  # The largest size, in bytes, of the HTML around a display.
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")


def html_body(blocks: Sequence[Block], limit: int) -> str:
    """The blocks as HTML of at most ``limit`` bytes, images of up to ``IMAGES_LIMIT`` characters not counted."""
    images = images_that_fit(blocks)
    head, dropped, tail = fit(blocks, limit, lambda block: _chunk(block, images))
    note = markup.muted("\n".join(notes(dropped))).replace("\n", "<br>") if dropped else ""
    return _assembled(head) + note + _assembled(tail)


def _chunk(block: Block, images: set[int]) -> Chunk:
    chunks = [_part(part, images) for part in merged_parts(block)]
    if all(chunk.lines for chunk in chunks):
        return Chunk("\n".join(c.content for c in chunks), sum(c.weight for c in chunks), sum(c.lines for c in chunks))
    shown = [chunk.content if not chunk.lines else markup.pre(chunk.content) for chunk in chunks]
    return Chunk("".join(shown), sum(chunk.weight + _OVERHEAD for chunk in chunks))


def _part(part: BlockPart, images: set[int]) -> Chunk:
    lead = prefix(part.ranks)
    shown = richest(part.item, images) if isinstance(part.item, RichOutput) else None
    if shown is not None:
        content, weight, is_picture = shown
        return Chunk(markup.shown_by(markup.prefix(lead), content, is_picture), weight + size(lead))
    text = text_of(part)
    colored = ansi.to_html(indented(lead, text))
    is_stderr = isinstance(part.item, OutputLine) and part.item.stream == "stderr"
    line = f"{markup.prefix(lead, is_stderr)} {markup.stderr(colored) if is_stderr else colored}"
    return Chunk(line, size(line) + 1, text.count("\n") + 1)


def richest(item: RichOutput, images: set[int]) -> tuple[str, int, bool] | None:
    """Markup of the richest type that the bundle offers, the bytes that it counts for, and whether it is a picture.

    None when the richest is its plain text. ``images``: see :func:`images_that_fit`.
    """
    data = item.data
    if "text/html" in data:
        shown = str(data["text/html"])
        if size(shown) > LONGEST_TEXT * 2:
            instead = markup.pre(ansi.to_html(text_of(BlockPart((), item))))
            shown = markup.muted(f"HTML of {len(shown):,} characters left out") + instead
        return shown, size(shown), False
    mime = _image_type(item)
    if mime:
        shown = _image(item, mime) if id(item) in images else _image_left_out(item, mime)
        return shown, _OVERHEAD + size(html.escape(_alt(item))), True
    mime = next((m for m in ("text/latex", "text/markdown") if m in data), "")
    if mime:
        text = html.escape(ansi.strip(cut(str(data[mime]), LONGEST_TEXT)))
        shown = f"<div>{text}</div>" if mime == "text/latex" else markup.pre(text)
        return shown, size(shown), False
    return None


def _image_type(item: object) -> str:
    return next((m for m in _IMAGES if m in item.data), "") if isinstance(item, RichOutput) else ""


def _alt(item: RichOutput) -> str:
    return ansi.strip(str(item.data.get("text/plain", "picture")))[:200]


def _image(item: RichOutput, mime: str) -> str:
    text = str(item.data[mime])
    encoded = base64.b64encode(text.encode()).decode() if mime == "image/svg+xml" else "".join(text.split())
    known = item.metadata.get(mime)
    width, height = (known.get("width"), known.get("height")) if isinstance(known, dict) else (None, None)
    return markup.picture(mime, encoded, _alt(item), width, height)


def _image_left_out(item: RichOutput, mime: str) -> str:
    length = len(str(item.data[mime]))
    why = f"{mime} of {length:,} characters left out, the run's pictures pass {IMAGES_LIMIT:,}"
    return markup.muted(f"{_alt(item)}: {why}")


def images_that_fit(blocks: Sequence[Block]) -> set[int]:
    """The ``id`` of each display whose picture is shown: the newest, as long as all together stay within the limit."""
    room = IMAGES_LIMIT
    chosen: set[int] = set()
    for part in (part for block in reversed(blocks) for part in block.parts):
        mime = _image_type(part.item)
        if mime and isinstance(part.item, RichOutput):
            room -= len(str(part.item.data[mime])) * (4 if mime == "image/svg+xml" else 3) // 3 + 4
            if room >= 0:
                chosen.add(id(part.item))
    return chosen


def _assembled(chunks: Iterable[Chunk]) -> str:
    out = []
    for is_text, group in itertools.groupby(chunks, key=lambda chunk: chunk.lines > 0):
        neighbours = list(group)
        out.append(_folded(neighbours) if is_text else "".join(chunk.content for chunk in neighbours))
    return "".join(out)


def _folded(chunks: list[Chunk]) -> str:
    """Lines of text; when there are many, all but the last ones are one click away."""
    shown, at = 0, len(chunks)
    is_long = sum(chunk.lines for chunk in chunks) > _FOLD
    while at > 0 and (not is_long or shown + chunks[at - 1].lines <= _SHOWN):
        at -= 1
        shown += chunks[at].lines
    early, late = ("\n".join(chunk.content for chunk in some) for some in (chunks[:at], chunks[at:]))
    folded = ""
    if early:
        summary = f"{sum(chunk.lines for chunk in chunks[:at]):,} {'earlier ' if late else ''}lines"
        folded = markup.details(summary, markup.pre(early))
    return folded + (markup.pre(late) if late else "")
