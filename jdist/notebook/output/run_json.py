"""Builds a run's output as :mod:`run_json_schema` describes it; what the bundle's HTML holds is a piece of that."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from jdist.core.outcome import OutputLine, RichOutput, SkippedLines
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.output.body import LONGEST_LINE, notes, text_of
from jdist.notebook.output.html_body import images_that_fit, richest
from jdist.notebook.output.run_json_schema import (
    VERSION,
    DisplaySegment,
    FailureJson,
    GapSegment,
    HtmlPiece,
    RankState,
    RankStates,
    RemedyJson,
    RunJson,
    Segment,
    TextSegment,
    VariantSegment,
    VariantText,
    VerdictJson,
)
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.transcript import Block, BlockPart
from jdist.notebook.text import ansi
from jdist.notebook.text.limits import cut, fit, size

_MOST_FAILURES = 12
_DETAILS = 20
_OVERHEAD = 110  # Bytes of a segment besides its text, as notebooks are written.
_INLINE = ("text/latex", "text/markdown")
_LARGEST_DATA = 50_000
# Left out: a widget's model lives in the rank's kernel, which the front end is not connected to.
_WIDGET = "application/vnd.jupyter.widget-view+json"

FindPiece = Callable[[str], HtmlPiece | None]


def run_json(view: RunView, html: str, tracebacks: Sequence[str], limit: int) -> dict[str, Any]:
    """A :class:`RunJson` for JSON, in which text of the ranks takes at most about ``limit`` bytes.

    ``html`` is the bundle's HTML, and ``tracebacks`` are the pieces of it that show the first causes' tracebacks.
    """
    causes, echoes = view.failures
    failed = [*causes, *echoes]
    markups = [*tracebacks, *[""] * _MOST_FAILURES]
    most = limit // 100  # characters of each text about the output
    find = _piece_finder(html)
    run = RunJson(
        version=VERSION,
        run=view.run,
        cluster=view.cluster,
        state=view.state,
        seconds=_rounded(view.elapsed),
        ranks=_rank_states(view),
        segments=_segments(view.blocks, limit, find),
        failures=[
            FailureJson(_written(f.ranks), f.kind, cut(f.headline, most), cut(f.place, most), find(text), f.is_echo)
            for f, text in zip(failed[:_MOST_FAILURES], markups, strict=False)
        ],
        more_failures=max(0, len(failed) - _MOST_FAILURES),
        verdict=_finding(view, most),
        notices=view.newest_notices(most),
        title=cut(ansi.strip(view.title), most),
        lead=view.lead,
    )
    return dict(msgspec.to_builtins(run))


def _piece_finder(html: str) -> FindPiece:
    """Finds markup in the HTML. It is asked mostly in the order in which the pieces stand there."""
    at, units = 0, 0  # a place in the HTML, and the UTF-16 units before it

    def find(markup: str) -> HtmlPiece | None:
        nonlocal at, units
        found = html.find(markup, at) if markup else -1
        if found < 0 and markup and (found := html.find(markup)) >= 0:
            at, units = 0, 0
        if found < 0:
            return None
        units += _utf16_units(html[at:found])
        at = found
        return HtmlPiece(units, _utf16_units(markup))

    return find


def _utf16_units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _rank_states(view: RunView) -> list[RankStates]:
    """The ranks by state and time, those that are alike together."""
    unfinished: RankState = "waiting" if view.state == "waiting" else "running"

    def state_of(rank: int) -> tuple[RankState, float | None]:
        outcome = view.outcomes.get(rank)
        return (unfinished, None) if outcome is None else (outcome.kind, _rounded(outcome.duration))

    alike = ranks_by((rank, state_of(rank)) for rank in view.ranks)
    return [RankStates(str(RankSet(ranks)), state, seconds) for (state, seconds), ranks in alike.items()]


def _rounded(seconds: float) -> float:
    """Two digits, or whole seconds: what a person reads, and what is equal on most ranks."""
    return float(f"{seconds:.2g}") if seconds < 10 else float(round(seconds))


def _finding(view: RunView, most: int) -> VerdictJson | None:
    v = view.verdict
    if v is None:
        return None
    is_over = view.state == "done"
    remedies = [] if is_over else [RemedyJson(r.action, r.effect, r.ranks) for r in v.remedies]
    details = [cut(ansi.strip(line), most) for line in v.details[:_DETAILS]]
    return VerdictJson(
        cut(ansi.strip(v.final_headline if is_over else v.headline), most), v.is_certain, details, remedies
    )


# ---------------------------------------------------------------- what the ranks wrote


class _BlockSegments(Struct, frozen=True):
    """A block's segments; those of lines still have to be joined with their neighbours'."""

    segments: tuple[Segment, ...]
    writers: object  # Lines of the same ranks and stream follow each other in one segment; None: it stands alone.
    weight: int


def _segments(blocks: Sequence[Block], limit: int, find: FindPiece) -> list[Segment]:
    images = images_that_fit(blocks)
    previous: object = None

    def make(block: Block) -> _BlockSegments:
        nonlocal previous
        segments = tuple(_block_segments(block, images, find))
        first = block.parts[0].item
        writers = (first.stream, *(part.ranks for part in block.parts)) if isinstance(first, OutputLine) else None
        overhead = 0 if writers is not None and writers == previous else _OVERHEAD * len(block.parts)
        previous = writers
        return _BlockSegments(segments, writers, overhead + sum(map(_weight, segments)))

    head, dropped, tail = fit(blocks, limit, make)
    return [*_joined(head), *map(GapSegment, notes(dropped)), *_joined(tail)]


def _joined(found: Sequence[_BlockSegments]) -> Iterator[Segment]:
    for _, group in itertools.groupby(found, key=lambda each: each.writers):
        segments = [segment for each in group for segment in each.segments]
        match segments[0]:
            case TextSegment(ranks=ranks, stderr=stderr):
                yield TextSegment(ranks, "\n".join(s.text for s in segments if isinstance(s, TextSegment)), stderr)
            case VariantSegment(stderr=stderr):
                columns = zip(*(s.texts for s in segments if isinstance(s, VariantSegment)), strict=True)
                yield VariantSegment(
                    [VariantText(c[0].ranks, "\n".join(each.text for each in c)) for c in columns], stderr
                )
            case _:
                yield from segments


def _block_segments(block: Block, images: set[int], find: FindPiece) -> Iterator[Segment]:
    first = block.parts[0].item
    if isinstance(first, OutputLine):
        is_stderr = first.stream == "stderr"
        texts = [VariantText(_written(part.ranks), cut(text_of(part), LONGEST_LINE)) for part in block.parts]
        yield (
            TextSegment(texts[0].ranks, texts[0].text, is_stderr)
            if len(texts) == 1
            else VariantSegment(texts, is_stderr)
        )
        return
    for part in block.parts:
        if isinstance(part.item, SkippedLines):
            yield GapSegment(text_of(part), _written(part.ranks))
        elif isinstance(part.item, RichOutput):
            yield _shown(part, part.item, images, find)


def _shown(part: BlockPart, item: RichOutput, images: set[int], find: FindPiece) -> DisplaySegment:
    data: dict[str, Any] = {mime: str(item.data[mime]) for mime in _INLINE if mime in item.data}
    data |= {m: v for m, v in item.data.items() if m.endswith("json") and m != _WIDGET}
    if sum(map(_length, data.values())) > _LARGEST_DATA:
        data = {}
    markup = None if any(mime in data for mime in _INLINE) else richest(item, images)
    piece = find(markup[0]) if markup is not None else None
    if piece is None:
        data["text/plain"] = text_of(part)
    known = {mime: item.metadata[mime] for mime in data if mime in item.metadata}
    return DisplaySegment(_written(part.ranks), piece, data or None, known or None, item.is_result)


def _weight(segment: Segment) -> int:
    match segment:
        case TextSegment() | GapSegment():
            return _length(segment.text)
        case VariantSegment():
            return sum(_length(each.text) for each in segment.texts)
        case DisplaySegment():
            return sum(map(_length, (segment.data or {}).values()))


def _length(value: Any) -> int:
    """Bytes of the value as a notebook holds it, about."""
    if isinstance(value, str):
        return size(value) + value.count('"') + value.count("\\") + 5 * value.count("\x1b")
    return len(msgspec.json.encode(value))


@lru_cache(maxsize=1024)
def _written(ranks: tuple[int, ...]) -> str:
    return str(RankSet(ranks))
