"""The body of a run's output: the transcript's blocks as plain text and as HTML, each within a size."""

from __future__ import annotations

import base64
import html
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from jdist.core.outcome import OutputEntry, OutputLine, RichOutput, SkippedLines
from jdist.core.ranks import RankSet
from jdist.notebook.output.failures import naming
from jdist.notebook.output.number_folding import joined
from jdist.notebook.output.transcript import Block, Part
from jdist.notebook.text import ansi, markup

IMAGES_LIMIT = 2_000_000
"""Characters of images that one output holds."""
LONGEST_LINE = 5_000
_LONGEST_TEXT = 50_000
_FOLD, _SHOWN = 80, 24
"""A run of more lines than the first is folded but for its last ``_SHOWN``."""
_OVERHEAD = 450
"""Bytes that HTML around a block takes at most."""
_MOST_NOTES = 20
_NOTE = 280
"""Bytes of a note at most."""
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")


class Weighed(Protocol):
    """What a block was made into."""

    @property
    def weight(self) -> int:
        """Bytes that it counts for."""


C = TypeVar("C", bound=Weighed)


class Chunk(Struct, frozen=True):
    """A block made ready: its text or markup, the bytes that it counts for, and its number of lines."""

    content: str
    weight: int
    lines: int = 1
    is_text: bool = True
    """Lines of text, which stand with their neighbours in one block."""


def size(text: str) -> int:
    """Bytes of the text as it is stored in a notebook."""
    return len(text.encode("utf-8", "surrogatepass"))


def plain_body(blocks: Sequence[Block], limit: int) -> str:
    """The blocks as plain text of at most ``limit`` bytes; the middle is left out where they are longer."""
    head, note, tail = fit(blocks, limit, _plain_chunk)
    return "\n".join([c.content for c in head] + note + [c.content for c in tail])


def html_body(blocks: Sequence[Block], limit: int) -> str:
    """The blocks as HTML of at most ``limit`` bytes, images of up to ``IMAGES_LIMIT`` characters not counted."""
    images = images_that_fit(blocks)
    head, note, tail = fit(blocks, limit, lambda block: _html_chunk(block, images))
    out = _assembled(head)
    if note:
        out += markup.muted("\n".join(note)).replace("\n", "<br>") + _assembled(tail)
    return out


def prefix(ranks: Iterable[int]) -> str:
    """``[0-3]``; cut where a set of very many ranks cannot be written shortly."""
    text = str(RankSet(ranks))
    return f"[{text}]" if len(text) <= 40 else f"[{text[:36].rsplit(',', 1)[0]},…]"


def left_out(lines: int, ranks: Iterable[int], what: str = "line") -> str:
    """``… 1,234 lines of rank 3 left out; %dist logs -r 3 shows them``."""
    who = RankSet(ranks)
    noun = what if lines == 1 else what + "s"
    whose = naming(who) if len(who) == 1 else f"each of {naming(who)}"
    shown = str(who) if len(str(who)) <= 80 else "RANK"
    return f"… {lines:,} {noun} of {whose} left out; %dist logs -r {shown} shows {'it' if lines == 1 else 'them'}"


def skipped_text(item: SkippedLines, ranks: tuple[int, ...]) -> str:
    """What stands for lines that were left out."""
    return left_out(item.lines, ranks) if item.lines else left_out(item.chars, ranks, "character")


def cut(text: str, most: int) -> str:
    """The text without its middle when it has more than ``most`` characters; colours go too then."""
    if len(text) <= most:
        return text
    text = ansi.strip(text)
    if len(text) <= most:
        return text
    keep = max(0, most - 50)
    first = keep // 3
    return f"{text[:first]} … {len(text) - keep:,} characters left out … {text[len(text) - (keep - first) :]}"


def fit(blocks: Sequence[Block], limit: int, make: Callable[[Block], C]) -> tuple[list[C], list[str], list[C]]:
    """Chunks of the first and last blocks that fit, and the note about those between; only what is kept is made."""
    head: list[C] = []
    room = limit
    for block in blocks:
        chunk = make(block)
        if chunk.weight > room:
            break
        room -= chunk.weight
        head.append(chunk)
    if len(head) == len(blocks):
        return head, [], []
    room += _shorten(head, limit * 2 // 5)
    room -= min(room, _MOST_NOTES * _NOTE)
    tail: list[C] = []
    for block in reversed(blocks[len(head) :]):
        chunk = make(block)
        if chunk.weight > room:
            break
        room -= chunk.weight
        tail.append(chunk)
    dropped = blocks[len(head) : len(blocks) - len(tail)]
    return head, _notes(dropped), tail[::-1]


def _shorten(chunks: list[C], limit: int) -> int:
    """Takes chunks off the end until the rest fits; returns the bytes that became free."""
    total = sum(chunk.weight for chunk in chunks)
    free = 0
    while chunks and total - free > limit:
        free += chunks.pop().weight
    return free


def _notes(dropped: Sequence[Block]) -> list[str]:
    """What was dropped, exactly, ranks of equal counts together."""
    lines: Counter[int] = Counter()
    displays: Counter[int] = Counter()
    for block in dropped:
        for part in block.parts:
            for rank in part.ranks:
                if isinstance(part.item, RichOutput):
                    displays[rank] += 1
                else:
                    lines[rank] += part.item.lines if isinstance(part.item, SkippedLines) else 1
    return _counted(lines, "line") + _counted(displays, "display")


def _counted(counts: Counter[int], what: str) -> list[str]:
    alike: dict[int, list[int]] = {}
    for rank, count in sorted(counts.items()):
        alike.setdefault(count, []).append(rank)
    groups = list(alike.items())
    notes = [left_out(count, ranks, what) for count, ranks in groups[: _MOST_NOTES // 2 - 1] if count]
    rest = groups[_MOST_NOTES // 2 - 1 :]
    if rest:
        total = sum(count * len(ranks) for count, ranks in rest)
        notes.append(
            f"… {total:,} {what}s of {sum(len(r) for _, r in rest)} other ranks left out; %dist logs shows them"
        )
    return notes


def _line_text(block: Block) -> str:
    """The text of a block of lines, one for all of its ranks."""
    if len(block.parts) == 1:
        item = block.parts[0].item
        return item.text if isinstance(item, OutputLine) else ""
    items = [block.of(rank) for rank in block.ranks]
    return joined([item.text for item in items if isinstance(item, OutputLine)])


def _indented(lead: str, text: str) -> str:
    """The text after ``lead``, further lines set under the first."""
    return text.replace("\n", "\n" + " " * (len(lead) + 1))


def _plain_chunk(block: Block) -> Chunk:
    first = block.parts[0].item
    if isinstance(first, OutputLine):
        text = f"{prefix(block.ranks)} {ansi.strip(cut(_line_text(block), LONGEST_LINE))}"
    else:
        text = "\n".join(_plain_part(part) for part in block.parts)
    return Chunk(text, size(text) + 1)


def _plain_part(part: Part) -> str:
    lead = prefix(part.ranks)
    if isinstance(part.item, SkippedLines):
        return f"{lead} {skipped_text(part.item, part.ranks)}"
    return f"{lead} {_indented(lead, ansi.strip(fallback(part.item)))}"


def fallback(item: OutputEntry) -> str:
    """The text that stands for a display where nothing richer can be shown."""
    if not isinstance(item, RichOutput):
        return ""
    text = item.data.get("text/plain")
    return (
        cut(str(text), _LONGEST_TEXT) if text is not None else f"<{', '.join(map(str, item.data)) or 'nothing'}>"[:500]
    )


def _html_chunk(block: Block, images: set[int]) -> Chunk:
    first = block.parts[0].item
    if isinstance(first, OutputLine):
        return _html_line(block, first.stream == "stderr")
    parts = [_html_part(part, images) for part in block.parts]
    if all(part.is_text for part in parts):
        return Chunk("\n".join(p.content for p in parts), sum(p.weight + 1 for p in parts), sum(p.lines for p in parts))
    shown = [p.content if not p.is_text else markup.pre(p.content) for p in parts]
    return Chunk("".join(shown), sum(p.weight + _OVERHEAD for p in parts), 0, False)


def _html_line(block: Block, is_stderr: bool) -> Chunk:
    text = ansi.to_html(cut(_line_text(block), LONGEST_LINE))
    line = f"{markup.prefix(prefix(block.ranks), is_stderr)} {markup.stderr(text) if is_stderr else text}"
    return Chunk(line, size(line) + 1)


def _html_part(part: Part, images: set[int]) -> Chunk:
    lead = prefix(part.ranks)
    if isinstance(part.item, SkippedLines):
        note = f"{markup.prefix(lead)} {html.escape(skipped_text(part.item, part.ranks))}"
        return Chunk(note, size(note))
    if isinstance(part.item, RichOutput):
        shown = richest(part.item, images)
        if shown is not None:
            around = markup.shown_by(markup.prefix(lead), shown.content, shown.lines == 1)
            return Chunk(around, shown.weight + size(lead), 0, False)
    text = fallback(part.item)
    content = f"{markup.prefix(lead)} {_indented(lead, ansi.to_html(text))}"
    return Chunk(content, size(content), text.count("\n") + 1)


def richest(item: RichOutput, images: set[int]) -> Chunk | None:
    """The richest of what the bundle offers; None when that is its plain text. ``images``: :func:`images_that_fit`."""
    data = item.data
    if "text/html" in data:
        own = str(data["text/html"])
        if size(own) <= _LONGEST_TEXT * 2:
            return Chunk(own, size(own), 0, False)
        note = markup.muted(f"HTML of {len(own):,} characters left out") + markup.pre(ansi.to_html(fallback(item)))
        return Chunk(note, size(note), 0, False)
    mime = next((m for m in _IMAGES if m in data), None)
    if mime is not None:
        shown = _image(item, mime) if id(item) in images else _no_image(item, mime)
        return Chunk(shown, _OVERHEAD + size(html.escape(_alt(item))), 1, False)
    for mime in ("text/latex", "text/markdown"):
        if mime in data:
            text = html.escape(ansi.strip(cut(str(data[mime]), _LONGEST_TEXT)))
            shown = f"<div>{text}</div>" if mime == "text/latex" else markup.pre(text)
            return Chunk(shown, size(shown), 0, False)
    return None


def _alt(item: RichOutput) -> str:
    return ansi.strip(str(item.data.get("text/plain", "picture")))[:200]


def _image(item: RichOutput, mime: str) -> str:
    content = item.data[mime]
    text = content if isinstance(content, str) else str(content)
    encoded = base64.b64encode(text.encode()).decode() if mime == "image/svg+xml" else "".join(text.split())
    known = item.metadata.get(mime)
    width, height = (known.get("width"), known.get("height")) if isinstance(known, dict) else (None, None)
    return markup.picture(mime, encoded, _alt(item), width, height)


def _no_image(item: RichOutput, mime: str) -> str:
    length = len(str(item.data[mime]))
    return markup.muted(
        f"{_alt(item)}: {mime} of {length:,} characters left out, the run's pictures pass {IMAGES_LIMIT:,}"
    )


def images_that_fit(blocks: Sequence[Block]) -> set[int]:
    """The ``id`` of each display whose picture is shown: the newest, as long as all together stay within the limit."""
    room = IMAGES_LIMIT
    chosen: set[int] = set()
    for block in reversed(blocks):
        for part in block.parts:
            item = part.item
            mime = next((m for m in _IMAGES if m in item.data), None) if isinstance(item, RichOutput) else None
            if mime is not None and isinstance(item, RichOutput):
                room -= len(str(item.data[mime])) * (4 if mime == "image/svg+xml" else 3) // 3 + 4
                if room >= 0:
                    chosen.add(id(item))
    return chosen


def _assembled(chunks: Iterable[Chunk]) -> str:
    out = []
    for is_text, group in itertools.groupby(chunks, key=lambda chunk: chunk.is_text):
        together = list(group)
        out.append(_folded(together) if is_text else "".join(chunk.content for chunk in together))
    return "".join(out)


def _folded(chunks: list[Chunk]) -> str:
    """Lines of text; when there are many, all but the last ones are one click away."""
    if sum(chunk.lines for chunk in chunks) <= _FOLD:
        return markup.pre("\n".join(chunk.content for chunk in chunks))
    shown, at = 0, len(chunks)
    while at > 0 and shown + chunks[at - 1].lines <= _SHOWN:
        at -= 1
        shown += chunks[at].lines
    early, late = chunks[:at], chunks[at:]
    if not early:
        return markup.pre("\n".join(chunk.content for chunk in late))
    count = sum(chunk.lines for chunk in early)
    summary = f"{count:,} {'earlier ' if late else ''}lines"
    folded = markup.details(summary, markup.pre("\n".join(chunk.content for chunk in early)))
    return folded + (markup.pre("\n".join(chunk.content for chunk in late)) if late else "")
