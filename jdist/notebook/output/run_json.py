"""The structure of a run's output, ``application/vnd.jdist.run.v1+json``, for a front end to draw.

The bundle's ``text/html`` shows the same, and serves a front end that meets another ``version``. Text stands here once
for all ranks that wrote it. Large things, such as a picture, a table or a traceback, are only in the HTML: its marked
pieces (``markup.marked``) are named by their numbers, from 0. Sets of ranks are written ``0-3,7``, and fields that have
their default are left out.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from jdist.client.debug import describe_call
from jdist.core.errors import Remedy
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.observation import PauseReason
from jdist.core.outcome import RichOutput
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.output.body import fit
from jdist.notebook.output.content import Contents, Displayed, GapSegment, RankText, TextSegment, written
from jdist.notebook.output.run_view import Failure, RunView
from jdist.notebook.output.transcript import Block
from jdist.notebook.text import markup
from jdist.notebook.text.markup import cut

MIME = "application/vnd.jdist.run.v1+json"
VERSION: Literal[1] = 1

_MOST_FAILURES = 12
_DETAILS = 20
_OVERHEAD = 110  # Bytes of a segment besides its text, as notebooks are written.
_INLINE = ("text/latex", "text/markdown")
_LARGEST_DATA = 50_000
_FIGURES_LIMIT = 1_000_000  # Bytes of figures in JSON, such as Plotly's and Vega's, that one output holds.

RankState = Literal["waiting", "running", "value", "error", "timeout", "interrupted", "lost"]
Count = Annotated[int, Meta(ge=0)]


class _Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An object without what has its default."""


class RankStates(_Record, frozen=True):
    """Ranks in one state. ``seconds`` from the cell's start there to its end there, rounded; null while it runs."""

    ranks: str
    state: RankState
    seconds: float | None = None


class DisplaySegment(_Record, frozen=True, tag="shown", tag_field="kind"):
    """A display, or with ``is_result`` a cell's last value: ``piece`` if it is there, else ``data`` by mime type."""

    ranks: str
    piece: int | None = None  # Of the HTML, marked.
    data: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    is_result: bool = False


Segment = TextSegment | DisplaySegment | GapSegment


class FailureJson(_Record, frozen=True):
    """Ranks on which the same went wrong. ``is_echo``: most likely the effect of the first failure."""

    ranks: str
    state: RankState
    headline: str
    place: str = ""  # `line 5: dist.all_reduce(t)`
    traceback: int | None = None  # The marked piece of the HTML.
    stands_open: bool = False  # The traceback is so short that it stands open if this is the first that is shown.
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

_Writers = tuple[bool, str, list[str]] | None


def run_json(view: RunView, contents: Contents, html: str, tracebacks: Sequence[str], limit: int) -> dict[str, Any]:
    """A :class:`RunJson` with at most about ``limit`` bytes of ranks' text; ``tracebacks`` are pieces of ``html``."""
    causes, echoes = view.failures
    failed = [*causes, *echoes]
    most = limit // 100  # characters of each text about the output
    shown = (*tracebacks, *[""] * _MOST_FAILURES)
    pieces = {piece: number for number, piece in enumerate(markup.marked_pieces(html))}
    run = RunJson(
        version=VERSION,
        run=view.run,
        cluster=view.cluster,
        state=view.state,
        seconds=_rounded(view.elapsed),
        ranks=_rank_states(view),
        segments=_segments(view.blocks, contents, limit, pieces),
        failures=[
            _failure(view, f, pieces.get(text), most) for f, text in zip(failed[:_MOST_FAILURES], shown, strict=False)
        ],
        more_failures=max(0, len(failed) - _MOST_FAILURES),
        verdict=_verdict(view, most),
        notices=view.newest_notices(most),
        lead=view.lead,
        paused=_pauses(view, most),
        frames=view.frames,
        cluster_id=view.cluster_id,
    )
    return dict(msgspec.to_builtins(run))


def _failure(view: RunView, failure: Failure, traceback: int | None, most: int) -> FailureJson:
    return FailureJson(
        written(failure.ranks),
        failure.kind,
        cut(failure.headline, most),
        failure.place,
        traceback,
        traceback is not None and failure.stands_open(is_full=view.is_full),
        failure.is_echo,
        list(failure.remedies),
    )


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


def _segments(blocks: Sequence[Block], contents: Contents, limit: int, pieces: Mapping[str, int]) -> list[Segment]:
    figures = _figures_that_fit(blocks)
    previous: list[_Writers] = []

    def make(block: Block) -> tuple[int, list[Segment]]:
        nonlocal previous
        found = [_display(c, figures, pieces) if isinstance(c, Displayed) else c for c in contents.of(block)]
        writers = [*map(_writers, found)]
        overhead = 0 if writers == previous and all(writers) else _OVERHEAD  # lines that are joined to others need none
        previous = writers
        return sum(_length(text) + overhead for each in found for text in _texts(each)), found

    head, notes, tail = fit(blocks, limit, make)
    return [*_joined(head), *map(GapSegment, notes), *_joined(tail)]


def _joined(found: Iterable[Segment]) -> Iterator[Segment]:
    """The segments, with neighbouring lines of the same ranks and stream in one of them."""
    for writers, group in itertools.groupby(found, key=_writers):
        if writers is None:
            yield from group
            continue
        lines = [each for each in group if isinstance(each, TextSegment)]
        columns = zip(*(each.texts for each in lines), strict=True)
        texts = [RankText(column[0].ranks, "\n".join(each.text for each in column)) for column in columns]
        yield TextSegment(lines[0].ranks, "\n".join(each.text for each in lines), texts, lines[0].stderr)


def _writers(segment: Segment) -> _Writers:
    """Which ranks wrote the lines of a segment, and to which stream; None for a segment without lines."""
    if not isinstance(segment, TextSegment):
        return None
    return segment.stderr, segment.ranks, [each.ranks for each in segment.texts]


def _display(shown: Displayed, figures: Mapping[int, dict[str, Any]], pieces: Mapping[str, int]) -> DisplaySegment:
    item = shown.item
    data: dict[str, Any] = {mime: str(item.data[mime]) for mime in _INLINE if mime in item.data}
    if _length(data) > _LARGEST_DATA:
        data = {}
    piece = None if data else pieces.get(shown.markup)
    figure = figures.get(id(item), {})
    data |= figure
    if piece is None:
        data["text/plain"] = shown.text if figure or not _figure(item) else _left_out(item)
    known = {mime: item.metadata[mime] for mime in data if mime in item.metadata}
    return DisplaySegment(shown.ranks, piece, data or None, known or None, item.is_result)


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


def _texts(segment: Segment) -> list[Any]:
    """What the segment counts for; figures have a limit of their own."""
    if isinstance(segment, DisplaySegment):
        return [{mime: text for mime, text in (segment.data or {}).items() if not mime.endswith("json")}]
    own = segment.texts if isinstance(segment, TextSegment) else ()
    return [segment.text, *(each.text for each in own)]


def _length(value: Any) -> int:
    """Bytes of the value as a notebook holds it, about."""
    return len(msgspec.json.encode(value))
