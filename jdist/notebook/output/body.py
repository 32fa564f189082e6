"""Body: what the ranks of a run wrote, as parts that hold text or a display, and as plain text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from jdist.core.outcome import OutputLine, RichOutput, SkippedLines
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.output.transcript import Block, BlockPart
from jdist.notebook.text import ansi
from jdist.notebook.text.limits import MOST_NOTES, cut, fit, left_out, size
from jdist.notebook.text.number_folding import joined
from jdist.notebook.text.remedy_text import typed

LONGEST_LINE = 5_000
LONGEST_TEXT = 50_000


class Chunk(Struct, frozen=True):
    """A block made ready: its text or markup, and the bytes that it counts for."""

    content: str
    weight: int
    lines: int = 0  # Its number of lines, which stand with their neighbours' in one HTML element; 0: it stands alone.


def merged_parts(block: Block) -> Sequence[BlockPart]:
    """The block's parts; lines that differ only in their numbers are one part, with each rank's numbers."""
    first = block.parts[0].item
    if not isinstance(first, OutputLine):
        return block.parts
    text = first.text
    if len(block.parts) > 1:
        text = joined([item.text for rank in block.ranks if isinstance(item := block.of(rank), OutputLine)])
    return (BlockPart(block.ranks, OutputLine(first.rank, first.stream, cut(text, LONGEST_LINE))),)


def prefix(ranks: Iterable[int]) -> str:
    """``[0-3]``; shortened where a set of very many ranks cannot be written in few characters."""
    text = str(RankSet(ranks))
    return f"[{text}]" if len(text) <= 40 else f"[{text[:36].rsplit(',', 1)[0]},…]"


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
    head, dropped, tail = fit(blocks, limit, _plain_chunk)
    return "\n".join([c.content for c in head] + notes(dropped) + [c.content for c in tail])


def _plain_chunk(block: Block) -> Chunk:
    lines = [(prefix(part.ranks), ansi.strip(text_of(part))) for part in merged_parts(block)]
    text = "\n".join(f"{lead} {indented(lead, line)}" for lead, line in lines)
    return Chunk(text, size(text) + 1)


def notes(dropped: Iterable[Block]) -> list[str]:
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
    most = MOST_NOTES // 2 - 1
    yield from (left_out(count, ranks, what) for count, ranks in groups[:most] if count)
    if rest := groups[most:]:
        total = sum(count * len(ranks) for count, ranks in rest)
        yield f"… {total:,} {what}s of {sum(len(r) for _, r in rest)} other ranks left out; {typed('logs')} shows them"


def only(blocks: Iterable[Block], ranks: tuple[int, ...]) -> list[Block]:
    """The blocks as the first of ``ranks`` has them, standing for all of these ranks."""
    found = ((block, block.of(ranks[0])) for block in blocks)
    return [Block(ranks, (BlockPart(ranks, item),), block.is_live) for block, item in found if item is not None]


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
    """Neighbouring blocks that share no rank, sorted by rank: which of them arrived first means nothing.

    Each rank's own order is kept.
    """
    ordered: list[Block] = []
    stretch: list[Block] = []
    seen: set[int] = set()
    for block in blocks:
        if seen & set(block.ranks):
            ordered += sorted(stretch, key=lambda b: min(b.ranks))
            stretch, seen = [], set()
        stretch.append(block)
        seen |= set(block.ranks)
    return ordered + sorted(stretch, key=lambda b: min(b.ranks))
