"""Decide what is shown of each block of a run's output, once for plain text, HTML and JSON.

A block becomes lines, gaps and displays (:data:`Content`), each with a text. ``body.py`` writes them as text and HTML.
Lines and gaps are themselves a part of the JSON (``run_json.py``).
"""

import base64
import html
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from jdist.core.outcome import OutputEntry, OutputLine, RichOutput, SkippedLines
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.output.transcript import Block, BlockPart
from jdist.notebook.text import folding, markup
from jdist.notebook.text.folding import MOST_JOINED, joined, summarized
from jdist.notebook.text.markup import cut, left_out, size

IMAGES_LIMIT = 2_000_000  # Characters of images that one output holds.
_LONGEST_LINE = 5_000
_LONGEST_TEXT = 50_000
_LONGEST_MARKUP = 100_000  # Bytes of a display's own HTML.
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")
_MOST_BARS = 128  # So many progress bars of one place are shown by rank.


class _Segment(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """What ranks wrote at one place. ``ranks`` are ``0-3,7``."""


class RankText(Struct, frozen=True, forbid_unknown_fields=True):
    """The lines of some of the ranks of a :class:`TextSegment`."""

    ranks: str
    text: str


class TextSegment(_Segment, frozen=True, tag="text"):
    """Lines that these ranks wrote, with ANSI colours.

    If they differ in a number, ``text`` has those of all, ``loss 0.1 | 0.2``, and ``texts`` are the ranks' own: line n
    of ``text`` stands for line n of each of these. The numbers of up to eight ranks stand in the order of the ranks, so
    it can be told whose each is. Those of more are a range, which opens to show them by rank.
    """

    ranks: str
    text: str
    texts: list[RankText] = []  # Of the progress bars of very many ranks, the slowest.
    stderr: bool = False

    @property
    def opens(self) -> bool:
        return len(self.texts) > MOST_JOINED


class GapSegment(_Segment, frozen=True, tag="gap"):
    """Something was left out here: how much, of whom, and where it is. Without ``ranks`` it concerns all."""

    text: str
    ranks: str = ""


class Displayed(Struct, frozen=True):
    """A display, or a cell's last value. ``text`` stands for it where ``markup`` cannot be shown."""

    ranks: str
    text: str
    item: RichOutput
    markup: str = ""  # The richest there is; "" where there is only text.
    weight: int = 0  # The bytes that the markup counts for: pictures have a limit of their own.
    is_picture: bool = False


Content = TextSegment | GapSegment | Displayed


class Contents:
    """The contents of a run's blocks: those of each block are made when they are first asked for."""

    def __init__(self, blocks: Sequence[Block]):
        self._images = _images_that_fit(blocks)
        self._made: dict[int, tuple[Block, list[Content]]] = {}  # With the block, so that its id remains its own.

    def of(self, block: Block) -> list[Content]:
        """What is shown of the block."""
        if (known := self._made.get(id(block))) is None:
            known = self._made[id(block)] = block, [*self._make(block)]
        return known[1]

    def _make(self, block: Block) -> Iterator[Content]:
        first = block.parts[0].item
        if isinstance(first, OutputLine):
            yield from _lines(block, first.stream == "stderr")
            return
        for part in block.parts:
            ranks, text = written(part.ranks), text_of(part)
            if isinstance(part.item, RichOutput):
                yield _displayed(ranks, text, part.item, id(part.item) in self._images)
            else:
                yield GapSegment(text, ranks)


@lru_cache(maxsize=1024)
def written(ranks: tuple[int, ...]) -> str:
    """The ranks as a user writes them."""
    return str(RankSet(ranks))


def text_of(part: BlockPart) -> str:
    """The part as text with colours; of a display, what stands for it where nothing richer can be shown."""
    match part.item:
        case OutputLine(text=text):
            return text
        case SkippedLines(lines=lines, chars=chars):
            return left_out(lines, part.ranks) if lines else left_out(chars, part.ranks, "character")
        case RichOutput(data=data):
            if "text/plain" in data:
                return cut(str(data["text/plain"]), _LONGEST_TEXT)
            return f"<{', '.join(map(str, data)) or 'nothing'}>"[:500]


# ---------------------------------------------------------------- lines


def _lines(block: Block, is_stderr: bool) -> list[TextSegment]:
    texts = [RankText(written(part.ranks), cut(text_of(part), _LONGEST_LINE)) for part in _by_rank(block)]
    if (line := _one_line(block)) is not None:
        return [TextSegment(written(block.ranks), line, texts, is_stderr)]
    return [TextSegment(each.ranks, each.text, stderr=is_stderr) for each in texts]


def _one_line(block: Block) -> str | None:
    """The line in which several ranks' lines are joined; None where each stands by itself."""
    if len(block.parts) < 2:
        return None
    is_many = len(block.parts) > MOST_JOINED
    if found := _bars_of(block):
        return folding.summary(found) if is_many else None
    lines = {part.ranks: part.item.text for part in block.parts if isinstance(part.item, OutputLine)}
    if is_many:
        return summarized(lines)
    by_rank = {rank: text for ranks, text in lines.items() for rank in ranks}
    return joined([by_rank[rank] for rank in block.ranks]) if len(by_rank) <= MOST_JOINED else None


def _bars_of(block: Block) -> dict[tuple[int, ...], folding.ProgressBar]:
    """The progress bars of a block by ranks; empty if it has other lines."""
    found = {p.ranks: folding.find(p.item.text) for p in block.parts if isinstance(p.item, OutputLine)}
    known = {ranks: bar for ranks, bar in found.items() if bar is not None}
    return known if len(known) == len(block.parts) else {}


def _by_rank(block: Block) -> Sequence[BlockPart]:
    """The block's parts, one by one; of the progress bars of very many ranks, the slowest."""
    if len(block.parts) <= _MOST_BARS or not (found := _bars_of(block)):
        return block.parts
    slowest = set(folding.slowest(found, _MOST_BARS))
    return [part for part in block.parts if part.ranks in slowest]


def unfolded(block: Block) -> list[Block]:
    """Split a block of many ranks, whose numbers are shown as a range, into blocks of eight ranks with every number."""
    if len(block.parts) <= MOST_JOINED or _one_line(block) is None or _bars_of(block):
        return [block]
    some = [block.ranks[at : at + MOST_JOINED] for at in range(0, len(block.ranks), MOST_JOINED)]
    return [Block(ranks, tuple(_parts_of(block, ranks))) for ranks in some]


def _parts_of(block: Block, ranks: tuple[int, ...]) -> Iterator[BlockPart]:
    for part in block.parts:
        if own := tuple(rank for rank in part.ranks if rank in ranks):
            yield BlockPart(own, part.item)


# ---------------------------------------------------------------- displays


def _displayed(ranks: str, text: str, item: RichOutput, has_room: bool) -> Displayed:
    """The display with the richest markup that it has."""
    data = item.data
    if "text/html" in data:
        shown = str(data["text/html"]).replace(markup.MARK, "<!-- -->")  # only jdist marks pieces
        if size(shown) > _LONGEST_MARKUP:
            shown = markup.muted(f"HTML of {len(shown):,} characters left out") + markup.pre(markup.to_html(text))
        return Displayed(ranks, text, item, shown, size(shown))
    if mime := _image_type(item):
        alt = markup.strip(str(data.get("text/plain", "picture")))[:200]
        why = f"{mime} of {len(str(data[mime])):,} characters left out, the run's pictures pass {IMAGES_LIMIT:,}"
        shown = _picture(item, mime, alt) if has_room else markup.muted(f"{alt}: {why}")
        weight = size(markup.picture(mime, "", alt) if has_room else shown)
        return Displayed(ranks, text, item, shown, weight, is_picture=True)
    if mime := next((m for m in ("text/latex", "text/markdown") if m in data), ""):
        source = html.escape(markup.strip(cut(str(data[mime]), _LONGEST_TEXT)))
        shown = f"<div>{source}</div>" if mime == "text/latex" else markup.pre(source)
        return Displayed(ranks, text, item, shown, size(shown))
    return Displayed(ranks, text, item)


def _image_type(item: OutputEntry) -> str:
    return next((m for m in _IMAGES if m in item.data), "") if isinstance(item, RichOutput) else ""


def _picture(item: RichOutput, mime: str, alt: str) -> str:
    text = str(item.data[mime])
    encoded = base64.b64encode(text.encode()).decode() if mime == "image/svg+xml" else "".join(text.split())
    known = item.metadata.get(mime)
    known = known if isinstance(known, dict) else {}
    return markup.picture(mime, encoded, alt, known.get("width"), known.get("height"))


def _images_that_fit(blocks: Sequence[Block]) -> set[int]:
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
