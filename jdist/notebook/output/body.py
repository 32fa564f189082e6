"""Write what the ranks of a run wrote as plain text and as HTML, each within a size."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from jdist.core.outcome import RichOutput, SkippedLines
from jdist.core.ranks import ranks_by
from jdist.notebook.output.content import Content, Contents, Displayed, TextSegment, unfolded
from jdist.notebook.output.transcript import Block
from jdist.notebook.text import markup
from jdist.notebook.text.markup import left_out, size
from jdist.notebook.text.remedy_text import typed

_FOLD, _SHOWN = 80, 24  # A sequence of more than `_FOLD` lines is folded but for its last `_SHOWN`.
_OVERHEAD = 450  # The largest size, in bytes, of the HTML around a display.
_MOST_NOTES = 20
_LONGEST_PREFIX = 160
_NOTE = 280  # The largest size of a note, in bytes.

T = TypeVar("T")
Make = Callable[[Block], tuple[int, list[T]]]  # Writes a block, and returns the bytes that it counts for as well.


def prefix(ranks: str) -> str:
    """``[0-3]``; shortened where a set of very many ranks cannot be written in less than two lines."""
    return f"[{ranks}]" if len(ranks) <= _LONGEST_PREFIX else f"[{ranks[: _LONGEST_PREFIX - 4].rsplit(',', 1)[0]},…]"


def indented(lead: str, text: str) -> str:
    """The text after ``lead`` and a space: its further lines are set under the first."""
    return text.replace("\n", "\n" + " " * (len(lead) + 1))


def plain_body(blocks: Sequence[Block], contents: Contents, limit: int) -> str:
    """The blocks as plain text of at most ``limit`` bytes; the middle is left out where they are longer."""

    def make(block: Block) -> tuple[int, list[str]]:
        found = ((prefix(each.ranks), each.text) for some in unfolded(block) for each in contents.of(some))
        rows = [f"{lead} {indented(lead, markup.strip(text))}" for lead, text in found]
        return sum(size(row) + 1 for row in rows), rows

    head, notes, tail = fit(blocks, limit, make)
    return "\n".join([*head, *notes, *tail])


# ---------------------------------------------------------------- HTML


class _Chunk(Struct, frozen=True):
    """Markup, the bytes that it counts for, and its lines, which stand with their neighbours' in one HTML element."""

    content: str
    weight: int
    lines: int = 0  # 0: it is no text and stands alone.


def html_body(blocks: Sequence[Block], contents: Contents, limit: int) -> str:
    """The blocks as HTML of at most ``limit`` bytes; the pictures in it are not counted."""

    def make(block: Block) -> tuple[int, list[_Chunk]]:
        chunks = [_chunk(content, len(block.parts)) for content in contents.of(block)]
        return sum(chunk.weight for chunk in chunks), chunks

    head, notes, tail = fit(blocks, limit, make)
    note = markup.muted("\n".join(notes)).replace("\n", "<br>") if notes else ""
    return _assembled(head) + note + _assembled(tail)


def _chunk(content: Content, count: int) -> _Chunk:
    """The content as HTML; ``count`` is the number of different lines of ranks that it stands for."""
    lead, is_stderr = prefix(content.ranks), isinstance(content, TextSegment) and content.stderr
    if isinstance(content, TextSegment) and content.opens:
        opening = _opening(lead, content, count)
        return _Chunk(opening, size(opening))
    if isinstance(content, Displayed) and content.markup:
        shown = markup.shown_by(markup.prefix(lead), markup.marked(content.markup), content.is_picture)
        return _Chunk(shown, content.weight + size(lead) + _OVERHEAD)
    colored = markup.to_html(indented(lead, content.text))
    line = f"{markup.prefix(lead, is_stderr)} {markup.stderr(colored) if is_stderr else colored}"
    return _Chunk(line, size(line) + 1, content.text.count("\n") + 1)


def _opening(lead: str, lines: TextSegment, count: int) -> str:
    """Lines of many ranks as one, which opens to show them by rank."""
    note = markup.muted(f"the {len(lines.texts)} slowest of {count}") if len(lines.texts) < count else ""
    width = max(len(prefix(each.ranks)) for each in lines.texts)
    rows = (f"{markup.prefix(prefix(each.ranks).ljust(width))} {markup.to_html(each.text)}" for each in lines.texts)
    return markup.details(f"{lead} {lines.text}", note + markup.pre("\n".join(rows)))


def _assembled(chunks: Iterable[_Chunk]) -> str:
    """The chunks as one piece of HTML; of many lines in sequence, all but the last ones are one click away."""
    out = []
    for is_text, group in itertools.groupby(chunks, key=lambda chunk: chunk.lines > 0):
        neighbours = list(group)
        if not is_text:
            out += [chunk.content for chunk in neighbours]
            continue
        total, shown, at = sum(chunk.lines for chunk in neighbours), 0, len(neighbours)
        while at > 0 and (total <= _FOLD or shown + neighbours[at - 1].lines <= _SHOWN):
            at -= 1
            shown += neighbours[at].lines
        early, late = ("\n".join(chunk.content for chunk in some) for some in (neighbours[:at], neighbours[at:]))
        summary = f"{total - shown:,} {'earlier ' if late else ''}lines"
        out.append(markup.details(summary, markup.pre(early)) if at else "")
        out.append(markup.pre(late) if late else "")
    return "".join(out)


# ---------------------------------------------------------------- what fits


def fit(blocks: Sequence[Block], limit: int, make: Make[T]) -> tuple[list[T], list[str], list[T]]:
    """Call ``make`` for the first and the last blocks, as far as the results fit into ``limit`` bytes.

    Returns the results for the first blocks, notes of what is left out between, and the results for the last blocks.
    """
    head, room = _while_fitting(blocks, limit, make)
    tail: list[tuple[int, list[T]]] = []
    if len(head) < len(blocks):
        while head and limit - room > limit * 2 // 5:  # two fifths are for the first ones
            room += head.pop()[0]
        room -= min(room, _MOST_NOTES * _NOTE)
        tail, _ = _while_fitting(blocks[len(head) :][::-1], room, make)
    notes = _notes(blocks[len(head) : len(blocks) - len(tail)])
    return _flat(head), notes, _flat(tail[::-1])


def _flat(found: Iterable[tuple[int, list[T]]]) -> list[T]:
    return [one for _, made in found for one in made]


def _while_fitting(blocks: Iterable[Block], room: int, make: Make[T]) -> tuple[list[tuple[int, list[T]]], int]:
    """The first blocks that fit, and the room that is left."""
    fitting = []
    for block in blocks:
        weight, made = make(block)
        if weight > room:
            break
        room -= weight
        fitting.append((weight, made))
    return fitting, room


def _notes(dropped: Iterable[Block]) -> list[str]:
    """Exactly what was dropped, ranks of equal counts together."""
    lines: Counter[int] = Counter()
    displays: Counter[int] = Counter()
    for block in dropped:
        for part in block.parts:
            count = part.item.lines if isinstance(part.item, SkippedLines) else 1
            (displays if isinstance(part.item, RichOutput) else lines).update(dict.fromkeys(part.ranks, count))
    return [*_counted(lines, "line"), *_counted(displays, "display")]


def _counted(counts: Counter[int], what: str) -> Iterator[str]:
    groups = list(ranks_by(sorted(counts.items())).items())
    most = _MOST_NOTES // 2 - 1
    yield from (left_out(count, ranks, what) for count, ranks in groups[:most] if count)
    if rest := groups[most:]:
        total = sum(count * len(ranks) for count, ranks in rest)
        yield f"… {total:,} {what}s of {sum(len(r) for _, r in rest)} other ranks left out; {typed('logs')} shows them"
