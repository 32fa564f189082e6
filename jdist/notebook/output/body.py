"""Write what the ranks of a run wrote as plain text and as HTML, each within a size."""

import base64
import html
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from jdist.core.outcome import OutputEntry, OutputLine, RichOutput, SkippedLines
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.output.transcript import Block, BlockPart
from jdist.notebook.text import folding, markup
from jdist.notebook.text.folding import MOST_JOINED, joined, summarized
from jdist.notebook.text.markup import cut, left_out, size
from jdist.notebook.text.remedy_text import typed

LONGEST_LINE = 5_000
LONGEST_TEXT = 50_000
IMAGES_LIMIT = 2_000_000  # Characters of images that one output holds.
_FOLD, _SHOWN = 80, 24  # A sequence of more than `_FOLD` lines is folded but for its last `_SHOWN`.
_OVERHEAD = 450  # The largest size, in bytes, of the HTML around a display.
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")
_MOST_NOTES = 20
_MOST_BARS = 128  # So many progress bars of one place are shown by rank.
_LONGEST_PREFIX = 160
_NOTE = 280  # The largest size of a note, in bytes.

T = TypeVar("T")
Make = Callable[[Block], tuple[int, T]]  # Makes a block ready, and returns the bytes that it counts for as well.


def one_line(block: Block) -> str | None:
    """The line in which several ranks' lines are joined; None where each stands by itself.

    The numbers of up to eight ranks stand in the order of the ranks, so it can be told whose each is. Those of more
    are a range, and what each rank wrote is in ``block.parts``.
    """
    if found := bars_of(block):
        return folding.summary(found) if len(block.parts) > folding.MOST else None
    lines = {part.ranks: part.item.text for part in block.parts if isinstance(part.item, OutputLine)}
    if len(block.parts) < 2 or len(lines) < len(block.parts):
        return None
    if len(block.parts) > MOST_JOINED:
        return summarized(lines)
    by_rank = {rank: text for ranks, text in lines.items() for rank in ranks}
    return joined([by_rank[rank] for rank in block.ranks]) if len(by_rank) <= MOST_JOINED else None


def _without_summary(block: Block) -> list[Block]:
    """Blocks that say the same with all numbers, of at most eight ranks each, in place of one that has only a range."""
    if len(block.parts) <= MOST_JOINED or one_line(block) is None or bars_of(block):
        return [block]
    some = [block.ranks[at : at + MOST_JOINED] for at in range(0, len(block.ranks), MOST_JOINED)]
    return [Block(ranks, tuple(_parts_of(block, ranks))) for ranks in some]


def _parts_of(block: Block, ranks: tuple[int, ...]) -> Iterator[BlockPart]:
    for part in block.parts:
        if own := tuple(rank for rank in part.ranks if rank in ranks):
            yield BlockPart(own, part.item)


def bars_of(block: Block) -> dict[tuple[int, ...], folding.ProgressBar]:
    """The progress bars of a block by ranks; empty if it has other lines."""
    found = {p.ranks: folding.find(p.item.text) for p in block.parts if isinstance(p.item, OutputLine)}
    known = {ranks: bar for ranks, bar in found.items() if bar is not None}
    return known if len(known) == len(block.parts) else {}


def by_rank(block: Block) -> Sequence[BlockPart]:
    """The block's parts, one by one; of the progress bars of very many ranks, the slowest."""
    if len(block.parts) <= _MOST_BARS or not (found := bars_of(block)):
        return block.parts
    slowest = set(folding.slowest(found, _MOST_BARS))
    return [part for part in block.parts if part.ranks in slowest]


def merged_parts(block: Block) -> Sequence[BlockPart]:
    """The block's parts as they are shown: lines that are joined are one part."""
    first = block.parts[0].item
    if not isinstance(first, OutputLine):
        return block.parts
    if (line := one_line(block)) is not None:
        return (BlockPart(block.ranks, _shortened(first, line)),)
    return [BlockPart(p.ranks, _shortened(p.item, p.item.text)) for p in block.parts if isinstance(p.item, OutputLine)]


def _shortened(line: OutputLine, text: str) -> OutputLine:
    return OutputLine(line.rank, line.stream, cut(text, LONGEST_LINE))


def prefix(ranks: Iterable[int]) -> str:
    """``[0-3]``; shortened where a set of very many ranks cannot be written in less than two lines."""
    text = str(RankSet(ranks))
    return f"[{text}]" if len(text) <= _LONGEST_PREFIX else f"[{text[: _LONGEST_PREFIX - 4].rsplit(',', 1)[0]},…]"


def text_of(part: BlockPart) -> str:
    """The part as text with colours; of a display, what stands for it where nothing richer can be shown."""
    match part.item:
        case OutputLine(text=text):
            return text
        case SkippedLines(lines=lines, chars=chars):
            return left_out(lines, part.ranks) if lines else left_out(chars, part.ranks, "character")
        case RichOutput(data=data):
            if "text/plain" in data:
                return cut(str(data["text/plain"]), LONGEST_TEXT)
            return f"<{', '.join(map(str, data)) or 'nothing'}>"[:500]


def indented(lead: str, text: str) -> str:
    """The text after ``lead`` and a space: its further lines are set under the first."""
    return text.replace("\n", "\n" + " " * (len(lead) + 1))


def plain_body(blocks: Sequence[Block], limit: int) -> str:
    """The blocks as plain text of at most ``limit`` bytes; the middle is left out where they are longer."""

    def make(block: Block) -> tuple[int, str]:
        parts = (part for each in _without_summary(block) for part in merged_parts(each))
        lines = [(prefix(part.ranks), markup.strip(text_of(part))) for part in parts]
        text = "\n".join(f"{lead} {indented(lead, line)}" for lead, line in lines)
        return size(text) + 1, text

    head, notes, tail = fit(blocks, limit, make)
    return "\n".join([*head, *notes, *tail])


# ---------------------------------------------------------------- HTML


class _Chunk(Struct, frozen=True):
    """Markup, the bytes that it counts for, and its lines, which stand with their neighbours' in one HTML element."""

    content: str
    weight: int
    lines: int = 0  # 0: it is no text and stands alone.


def html_body(blocks: Sequence[Block], limit: int) -> str:
    """The blocks as HTML of at most ``limit`` bytes, images of up to ``IMAGES_LIMIT`` characters not counted."""
    images = images_that_fit(blocks)

    def make(block: Block) -> tuple[int, _Chunk]:
        if len(block.parts) > folding.MOST and (line := one_line(block)) is not None:
            content = _opening(block, line)
            return size(content), _Chunk(content, size(content))
        chunks = [_chunk(part, images) for part in merged_parts(block)]
        weight = sum(chunk.weight for chunk in chunks)
        if all(chunk.lines for chunk in chunks):
            return weight, _Chunk("\n".join(c.content for c in chunks), weight, sum(c.lines for c in chunks))
        shown = [markup.pre(chunk.content) if chunk.lines else chunk.content for chunk in chunks]
        weight += _OVERHEAD * len(chunks)
        return weight, _Chunk("".join(shown), weight)

    head, notes, tail = fit(blocks, limit, make)
    note = markup.muted("\n".join(notes)).replace("\n", "<br>") if notes else ""
    return _assembled(head) + note + _assembled(tail)


def _opening(block: Block, line: str) -> str:
    """Lines of many ranks as one, which opens to show them by rank."""
    parts = by_rank(block)
    more = [markup.muted(f"the {len(parts)} slowest of {len(block.parts)}")] if len(parts) < len(block.parts) else []
    width = max(len(prefix(part.ranks)) for part in parts)
    lines = (f"{markup.prefix(prefix(p.ranks).ljust(width))} {markup.to_html(text_of(p))}" for p in parts)
    return markup.details(f"{prefix(block.ranks)} {line}", "".join(more) + markup.pre("\n".join(lines)))


def _chunk(part: BlockPart, images: set[int]) -> _Chunk:
    lead = prefix(part.ranks)
    shown = richest(part.item, images) if isinstance(part.item, RichOutput) else None
    if shown is not None:
        content, weight, is_picture = shown
        return _Chunk(markup.shown_by(markup.prefix(lead), content, is_picture), weight + size(lead))
    text = text_of(part)
    colored = markup.to_html(indented(lead, text))
    is_stderr = isinstance(part.item, OutputLine) and part.item.stream == "stderr"
    line = f"{markup.prefix(lead, is_stderr)} {markup.stderr(colored) if is_stderr else colored}"
    return _Chunk(line, size(line) + 1, text.count("\n") + 1)


def richest(item: RichOutput, images: set[int]) -> tuple[str, int, bool] | None:
    """The richest markup, the bytes that it counts for, and whether it is a picture; None: there is only plain text."""
    data = item.data
    if "text/html" in data:
        shown = str(data["text/html"])
        if size(shown) > LONGEST_TEXT * 2:
            instead = markup.pre(markup.to_html(text_of(BlockPart((), item))))
            shown = markup.muted(f"HTML of {len(shown):,} characters left out") + instead
        return shown, size(shown), False
    if mime := _image_type(item):
        alt = markup.strip(str(data.get("text/plain", "picture")))[:200]
        return _picture(item, mime, alt, id(item) in images), _OVERHEAD + size(html.escape(alt)), True
    if mime := next((m for m in ("text/latex", "text/markdown") if m in data), ""):
        text = html.escape(markup.strip(cut(str(data[mime]), LONGEST_TEXT)))
        shown = f"<div>{text}</div>" if mime == "text/latex" else markup.pre(text)
        return shown, size(shown), False
    return None


def _image_type(item: OutputEntry) -> str:
    return next((m for m in _IMAGES if m in item.data), "") if isinstance(item, RichOutput) else ""


def _picture(item: RichOutput, mime: str, alt: str, is_shown: bool) -> str:
    text = str(item.data[mime])
    if not is_shown:
        why = f"{mime} of {len(text):,} characters left out, the run's pictures pass {IMAGES_LIMIT:,}"
        return markup.muted(f"{alt}: {why}")
    encoded = base64.b64encode(text.encode()).decode() if mime == "image/svg+xml" else "".join(text.split())
    known = item.metadata.get(mime)
    known = known if isinstance(known, dict) else {}
    return markup.picture(mime, encoded, alt, known.get("width"), known.get("height"))


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
    """The first blocks within ``limit`` bytes, notes of what is left out, and the last ones. Only these are made."""
    head, room = _while_fitting(blocks, limit, make)
    tail: list[tuple[int, T]] = []
    if len(head) < len(blocks):
        while head and limit - room > limit * 2 // 5:  # two fifths are for the first ones
            room += head.pop()[0]
        room -= min(room, _MOST_NOTES * _NOTE)
        tail, _ = _while_fitting(blocks[len(head) :][::-1], room, make)
    notes = _notes(blocks[len(head) : len(blocks) - len(tail)])
    return [made for _, made in head], notes, [made for _, made in reversed(tail)]


def _while_fitting(blocks: Iterable[Block], room: int, make: Make[T]) -> tuple[list[tuple[int, T]], int]:
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


# ---------------------------------------------------------------- choice and order


def only(blocks: Iterable[Block], ranks: tuple[int, ...]) -> list[Block]:
    """The blocks as the first of ``ranks`` has them, standing for all of these ranks."""
    items = (block.of(ranks[0]) for block in blocks)
    return [Block(ranks, (BlockPart(ranks, item),)) for item in items if item is not None]


def alike_but(blocks: Sequence[Block], lead: int) -> list[tuple[int, ...]]:
    """The ranks but ``lead``, those with the same output together."""
    written: dict[int, list[tuple[int, int]]] = {}
    for place, block in enumerate(blocks):
        for which, part in enumerate(block.parts):
            for rank in part.ranks:
                written.setdefault(rank, []).append((place, which))
    written.pop(lead, None)
    return [tuple(ranks) for ranks in ranks_by((r, tuple(places)) for r, places in sorted(written.items())).values()]


def in_rank_order(blocks: Sequence[Block]) -> list[Block]:
    """The blocks, with neighbours that share no rank sorted by rank: which of them arrived first means nothing. What
    the same ranks wrote in sequence stays together, such as a tensor's lines.
    """
    ordered: list[Block] = []
    stretch: list[list[Block]] = []
    seen: set[int] = set()
    for ranks, written in itertools.groupby(blocks, key=lambda block: block.ranks):
        if not seen.isdisjoint(ranks):
            ordered += _by_first_rank(stretch)
            stretch, seen = [], set()
        stretch.append(list(written))
        seen.update(ranks)
    return ordered + _by_first_rank(stretch)


def _by_first_rank(stretch: list[list[Block]]) -> list[Block]:
    return [block for some in sorted(stretch, key=lambda some: some[0].ranks[0]) for block in some]
