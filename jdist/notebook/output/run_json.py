"""The structure of a run's output, ``application/vnd.jdist.run.v1+json``, for a front end to draw.

The bundle's ``text/html`` shows the same, and serves a front end that meets another ``version``. Text stands here once
for all ranks that wrote it. Large things, such as a picture, a table or a traceback, are parts of the HTML
(:class:`HtmlPiece`). Sets of ranks are written ``0-3,7``, and fields that have their default are left out.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from jdist.client.debug import describe_call
from jdist.core.errors import Remedy
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.observation import PauseReason
from jdist.core.outcome import OutputLine, RichOutput
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.output.body import LONGEST_LINE, by_rank, fit, images_that_fit, one_line, richest, text_of
from jdist.notebook.output.run_view import Failure, RunView
from jdist.notebook.output.transcript import Block, BlockPart
from jdist.notebook.text import markup
from jdist.notebook.text.markup import cut

MIME = "application/vnd.jdist.run.v1+json"
VERSION: Literal[1] = 1

_MOST_FAILURES = 12
_DETAILS = 20
_MOST_REMEDIES = 4
_OVERHEAD = 110  # Bytes of a segment besides its text, as notebooks are written.
_INLINE = ("text/latex", "text/markdown")
_LARGEST_DATA = 50_000
_FIGURES_LIMIT = 1_000_000  # Bytes of figures in JSON, such as Plotly's and Vega's, that one output holds.

RankState = Literal["waiting", "running", "value", "error", "timeout", "interrupted", "lost"]
Count = Annotated[int, Meta(ge=0)]


class _Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An object without what has its default."""


class HtmlPiece(_Record, frozen=True):
    """A part of the bundle's ``text/html``, in UTF-16 code units, as JavaScript counts them."""

    start: Count
    length: Count


class RankStates(_Record, frozen=True):
    """Ranks in one state. ``seconds`` from the cell's start there to its end there, rounded; null while it runs."""

    ranks: str
    state: RankState
    seconds: float | None = None


class TextSegment(_Record, frozen=True, tag="text", tag_field="kind"):
    """Lines that these ranks wrote, equal on all of them, with ANSI colours."""

    ranks: str
    text: str
    stderr: bool = False


class VariantText(_Record, frozen=True):
    """The lines of some of the ranks of a :class:`VariantSegment`."""

    ranks: str
    text: str


class VariantSegment(_Record, frozen=True, tag="alike", tag_field="kind"):
    """Lines that differ in a number: ``text`` has those of all ``ranks``, ``loss 0.1 | 0.2``; ``texts`` are their own.
    Line n of ``text`` stands for line n of all ``texts``.
    """

    ranks: str
    text: str
    texts: list[VariantText]
    stderr: bool = False


class DisplaySegment(_Record, frozen=True, tag="shown", tag_field="kind"):
    """A display, or with ``is_result`` a cell's last value: ``piece`` if it is there, else ``data`` by mime type."""

    ranks: str
    piece: HtmlPiece | None = None
    data: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    is_result: bool = False


class GapSegment(_Record, frozen=True, tag="gap", tag_field="kind"):
    """Something was left out here: how much, of whom, and where it is. Without ``ranks`` it concerns all."""

    text: str
    ranks: str = ""


Segment = TextSegment | VariantSegment | DisplaySegment | GapSegment


class FailureJson(_Record, frozen=True):
    """Ranks on which the same went wrong. ``is_echo``: most likely the effect of the first failure."""

    ranks: str
    state: RankState
    headline: str
    place: str = ""  # `line 5: dist.all_reduce(t)`
    traceback: HtmlPiece | None = None
    is_echo: bool = False
    remedies: list[Remedy] = []


class VerdictJson(_Record, frozen=True):
    """Why the run makes no progress or, without remedies, did not finish."""

    headline: str
    is_certain: bool
    details: list[str] = []
    remedies: list[Remedy] = []
    follows_failures: bool = False  # It stands below the failures, one of which is its cause.


class PauseJson(_Record, frozen=True):
    """Ranks that are paused at the same place, in the same way."""

    ranks: str
    reason: PauseReason
    function: str
    line: int  # From 1.
    source: str = ""  # Text of the line.
    file: str = ""  # Path on the ranks' nodes; "" for a cell.
    of_run: int = 0  # The run whose cell the code is from; 0 if it is not from a cell.
    about_to: str = ""  # The call that they are about to begin, after a step to the next one.
    returns: str = ""  # The value that they are about to return, after a step to the end of a function.
    thread: str = ""  # The thread, if it is not the main one.
    error: str = ""  # For a failure.


class RunJson(_Record, frozen=True):
    """A run. ``seconds``: since its start, or in all once it is done."""

    version: Literal[1]
    run: int
    cluster: str  # Its name.
    state: Literal["waiting", "running", "done"]
    seconds: float
    ranks: list[RankStates]
    segments: list[Segment] = []
    failures: list[FailureJson] = []  # The first cause first, echoes last.
    more_failures: int = 0  # The number of distinct failures that are left out.
    verdict: VerdictJson | None = None
    notices: list[str] = []
    lead: int | None = None  # The rank to show first; None: all ranks.
    paused: list[PauseJson] = []  # Where ranks are paused; `state` is "running" then, too.
    frames: str = ""  # In which frames the cell runs, if not in the ranks' own names.
    cluster_id: str = ""  # Tells apart clusters of the same name.


# ---------------------------------------------------------------- how it is made

FindPiece = Callable[[str], HtmlPiece | None]
_Writers = tuple[bool, list[str], bool] | None


def run_json(view: RunView, html: str, tracebacks: Sequence[str], limit: int) -> dict[str, Any]:
    """A :class:`RunJson` with at most about ``limit`` bytes of ranks' text; ``tracebacks`` are pieces of ``html``."""
    causes, echoes = view.failures
    failed = [*causes, *echoes]
    most = limit // 100  # characters of each text about the output
    shown = (*tracebacks, *[""] * _MOST_FAILURES)
    find = _piece_finder(html)
    run = RunJson(
        version=VERSION,
        run=view.run,
        cluster=view.cluster,
        state=view.state,
        seconds=_rounded(view.elapsed),
        ranks=_rank_states(view),
        segments=_segments(view.blocks, limit, find),
        failures=[_failure(f, text, most, find) for f, text in zip(failed[:_MOST_FAILURES], shown, strict=False)],
        more_failures=max(0, len(failed) - _MOST_FAILURES),
        verdict=_verdict(view, most),
        notices=view.newest_notices(most),
        lead=view.lead,
        paused=_pauses(view, most),
        frames=view.frames,
        cluster_id=view.cluster_id,
    )
    return dict(msgspec.to_builtins(run))


def _failure(failure: Failure, traceback: str, most: int, find: FindPiece) -> FailureJson:
    return FailureJson(
        _written(failure.ranks),
        failure.kind,
        cut(failure.headline, most),
        cut(failure.place, most),
        find(traceback),
        failure.is_echo,
        list(failure.remedies[:_MOST_REMEDIES]),
    )


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


def _verdict(view: RunView, most: int) -> VerdictJson | None:
    v = view.verdict
    if v is None:
        return None
    is_over = view.state == "done"
    headline = cut(markup.strip(v.final_headline if is_over else v.headline), most)
    details = [cut(markup.strip(line), most) for line in v.details[:_DETAILS]]
    remedies = [] if is_over else [*v.remedies]
    return VerdictJson(headline, v.is_certain, details, remedies, view.follows_failures)


def _pauses(view: RunView, most: int) -> list[PauseJson]:
    def place_of(paused: RankPaused) -> tuple[Any, ...]:
        at, call = paused.at, paused.about_to
        about_to = "" if call is None else describe_call(call)
        texts = (at.source, at.file, at.run, about_to, paused.returns, paused.thread, paused.error)
        return (paused.reason, at.function, at.line, *(cut(t, most) if isinstance(t, str) else t for t in texts))

    alike = ranks_by((rank, place_of(paused)) for rank, paused in sorted(view.paused.items()))
    return [PauseJson(str(RankSet(ranks)), *place) for place, ranks in alike.items()]


# ---------------------------------------------------------------- what the ranks wrote


def _segments(blocks: Sequence[Block], limit: int, find: FindPiece) -> list[Segment]:
    images, figures = images_that_fit(blocks), _figures_that_fit(blocks)
    previous: list[_Writers] = []

    def make(block: Block) -> tuple[int, list[Segment]]:
        nonlocal previous
        first = block.parts[0].item
        if not isinstance(first, OutputLine):
            previous = []
            shown = [_display(part, images, figures, find) for part in block.parts]
            return _OVERHEAD * len(shown) + sum(map(_weight, shown)), [*shown]
        texts = [VariantText(_written(part.ranks), cut(text_of(part), LONGEST_LINE)) for part in by_rank(block)]
        line = one_line(block)
        lines: list[Segment] = [TextSegment(each.ranks, each.text, first.stream == "stderr") for each in texts]
        if line is not None:
            lines = [VariantSegment(_written(block.ranks), line, texts, first.stream == "stderr")]
        overhead = 0 if [*map(_writers, lines)] == previous else _OVERHEAD * len(texts)
        previous = [*map(_writers, lines)]
        return overhead + sum(_length(each.text) for each in texts) + _length(line or ""), lines

    head, notes, tail = fit(blocks, limit, make)
    return [*_joined(head), *map(GapSegment, notes), *_joined(tail)]


def _joined(found: Iterable[list[Segment]]) -> Iterator[Segment]:
    """The segments, with neighbouring lines of the same ranks and stream in one of them."""
    for writers, group in itertools.groupby(itertools.chain.from_iterable(found), key=_writers):
        some = list(group)
        if writers is None:
            yield from some
            continue
        lines = [each for each in some if isinstance(each, TextSegment | VariantSegment)]
        text = "\n".join(each.text for each in lines)
        columns = zip(*(each.texts for each in lines if isinstance(each, VariantSegment)), strict=True)
        texts = [VariantText(column[0].ranks, "\n".join(each.text for each in column)) for column in columns]
        ranks, is_stderr = lines[0].ranks, lines[0].stderr
        yield VariantSegment(ranks, text, texts, is_stderr) if texts else TextSegment(ranks, text, is_stderr)


def _writers(segment: Segment) -> _Writers:
    """To which stream lines were written and by whom; None for anything else."""
    match segment:
        case TextSegment():
            return segment.stderr, [segment.ranks], False
        case VariantSegment():
            return segment.stderr, [each.ranks for each in segment.texts], True
    return None


def _display(
    part: BlockPart, images: set[int], figures: dict[int, dict[str, Any]], find: FindPiece
) -> GapSegment | DisplaySegment:
    item = part.item
    if not isinstance(item, RichOutput):
        return GapSegment(text_of(part), _written(part.ranks))
    data: dict[str, Any] = {mime: str(item.data[mime]) for mime in _INLINE if mime in item.data}
    if sum(map(_length, data.values())) > _LARGEST_DATA:
        data = {}
    markup = None if any(mime in data for mime in _INLINE) else richest(item, images)
    piece = find(markup[0]) if markup is not None else None
    figure = figures.get(id(item))
    data |= figure or {}
    if piece is None:
        data["text/plain"] = text_of(part) if figure or not _figure(item) else _left_out(item)
    known = {mime: item.metadata[mime] for mime in data if mime in item.metadata}
    return DisplaySegment(_written(part.ranks), piece, data or None, known or None, item.is_result)


def _figures_that_fit(blocks: Sequence[Block]) -> dict[int, dict[str, Any]]:
    """What front ends draw from JSON, by the ``id`` of its display: the newest of those that fit into the limit."""
    room, looked_at = _FIGURES_LIMIT, 0
    chosen = {}
    for part in (part for block in reversed(blocks) for part in block.parts):
        if looked_at < _FIGURES_LIMIT * 16 and isinstance(part.item, RichOutput) and (figure := _figure(part.item)):
            weight = _length(figure)
            looked_at += weight
            if weight <= room:
                room -= weight
                chosen[id(part.item)] = figure
    return chosen


def _figure(item: RichOutput) -> dict[str, Any]:
    return {mime: found for mime, found in item.data.items() if mime.endswith("json")}


def _left_out(item: RichOutput) -> str:
    figure = _figure(item)
    return f"[{', '.join(figure)} of {_length(figure):,} bytes left out, an output holds {_FIGURES_LIMIT:,}]"


def _weight(segment: GapSegment | DisplaySegment) -> int:
    """What the segment counts for; figures have a limit of their own."""
    if isinstance(segment, GapSegment):
        return _length(segment.text)
    return _length({mime: text for mime, text in (segment.data or {}).items() if not mime.endswith("json")})


def _length(value: Any) -> int:
    """Bytes of the value as a notebook holds it, about."""
    return len(msgspec.json.encode(value))


@lru_cache(maxsize=1024)
def _written(ranks: tuple[int, ...]) -> str:
    return str(RankSet(ranks))
