"""Structure: a run's output as :mod:`mime` describes it. What the bundle's HTML holds anyway is named, not repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from jdist.core.outcome import OutputLine, RichOutput, SkippedLines
from jdist.core.ranks import RankSet
from jdist.notebook.output.blocks import LONGEST_LINE, cut, fallback, fit, images_that_fit, richest, size, skipped_text
from jdist.notebook.output.failures import Failure, failures, headline, located, split_echoes
from jdist.notebook.output.run_json_schema import (
    VERSION,
    Alike,
    Failing,
    Finding,
    Gap,
    Piece,
    Ranks,
    RankState,
    Run,
    Said,
    Segment,
    Shown,
    Text,
    WayOut,
)
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.transcript import Block, Part
from jdist.notebook.text import ansi

MOST_FAILURES = 12
_NOTICES = 4
_DETAILS = 20
_OVERHEAD = 110
"""Bytes of a segment besides its text, as notebooks are written."""
_INLINE = ("text/latex", "text/markdown")
_LARGEST_DATA = 50_000
_NOT_HERE = "application/vnd.jupyter.widget-view+json"
"""Its model lives in the rank's kernel, which the front end does not talk to."""

Find = Callable[[str], Piece | None]


def structure(view: RunView, shown: str, tracebacks: Mapping[tuple[int, ...], str], limit: int) -> dict[str, Any]:
    """A :class:`mime.Run` for JSON. ``shown`` is the bundle's HTML, and ``tracebacks`` are what it has of failures, by
    ranks; text that the ranks wrote takes at most about ``limit`` bytes.
    """
    causes, echoes = split_echoes(failures(view.outcomes, view.first_failed))
    told = [*causes, *echoes]
    most = limit // 100  # characters of anything that is said about the output
    find = _finder(shown)
    run = Run(
        version=VERSION,
        run=view.run,
        cluster=view.cluster,
        state=view.state,
        seconds=_rounded(view.elapsed),
        ranks=_ranks(view),
        segments=_segments(view.blocks, limit, find),
        failures=[_failing(view, each, find(tracebacks.get(each.ranks, "")), most) for each in told[:MOST_FAILURES]],
        more_failures=max(0, len(told) - MOST_FAILURES),
        verdict=_finding(view, most),
        notices=[cut(ansi.strip(notice), most) for notice in view.notices[-_NOTICES:]],
        title=cut(ansi.strip(view.title), most),
        lead=view.lead,
    )
    return dict(msgspec.to_builtins(run))


def _finder(shown: str) -> Find:
    """Finds markup in the HTML. It is asked for in the order in which it stands there, mostly."""
    last, wide = 0, 0  # how many characters before `last` take two units

    def find(markup: str) -> Piece | None:
        nonlocal last, wide
        at = shown.find(markup, last) if markup else -1
        if at < 0:
            at = shown.find(markup) if markup else -1
            if at < 0:
                return None
            last, wide = 0, 0
        wide += _units(shown[last:at]) - (at - last)
        last = at
        return Piece(at + wide, _units(markup))

    return find


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _ranks(view: RunView) -> list[Ranks]:
    """By state and time; ranks that are alike together."""
    alike: dict[tuple[RankState, float | None], list[int]] = {}
    going: RankState = "waiting" if view.state == "waiting" else "running"
    for rank in view.ranks:
        outcome = view.outcomes.get(rank)
        key = (going, None) if outcome is None else (outcome.kind, _rounded(outcome.duration))
        alike.setdefault(key, []).append(rank)
    return [Ranks(str(RankSet(who)), state, seconds) for (state, seconds), who in alike.items()]


def _rounded(seconds: float) -> float:
    """Two digits, or whole seconds: what a person reads, and what is equal on most ranks."""
    return float(f"{seconds:.2g}") if seconds < 10 else float(round(seconds))


# what the ranks wrote


class _Weighed(Struct, frozen=True):
    segments: tuple[Segment, ...]
    weight: int


def _segments(blocks: Sequence[Block], limit: int, find: Find) -> list[Segment]:
    images = images_that_fit(blocks)
    before: object = None

    def make(block: Block) -> _Weighed:
        nonlocal before
        found = tuple(_block_segments(block, images, find))
        own = _joint(found[-1]) if found else None
        overhead = 0 if own is not None and own == before else _OVERHEAD * sum(map(_parts, found))
        before = own
        return _Weighed(found, overhead + sum(map(_weight, found)))

    head, notes, tail = fit(blocks, limit, make)
    gaps = [Gap(note) for note in notes]
    return _merged([*(s for w in head for s in w.segments), *gaps, *(s for w in tail for s in w.segments)])


def _block_segments(block: Block, images: set[int], find: Find) -> Iterator[Segment]:
    lines = [(part.ranks, part.item) for part in block.parts if isinstance(part.item, OutputLine)]
    if lines:
        is_stderr = lines[0][1].stream == "stderr"
        texts = [Said(_written(ranks), cut(line.text, LONGEST_LINE)) for ranks, line in lines]
        yield Text(texts[0].ranks, texts[0].text, is_stderr) if len(texts) == 1 else Alike(texts, is_stderr)
        return
    for part in block.parts:
        who = _written(part.ranks)
        if isinstance(part.item, SkippedLines):
            yield Gap(skipped_text(part.item, part.ranks), who)
        elif isinstance(part.item, RichOutput):
            yield _shown(part, part.item, images, find)


def _shown(part: Part, item: RichOutput, images: set[int], find: Find) -> Shown:
    who = _written(part.ranks)
    data: dict[str, Any] = {mime: str(item.data[mime]) for mime in _INLINE if mime in item.data}
    data |= {m: v for m, v in item.data.items() if m.endswith("json") and m != _NOT_HERE}
    if sum(map(_length, data.values())) > _LARGEST_DATA:
        data = {}
    markup = None if any(mime in data for mime in _INLINE) else richest(item, images)
    piece = find(markup.content) if markup is not None else None
    if piece is None:
        data["text/plain"] = fallback(item)
    known = {mime: item.metadata[mime] for mime in data if mime in item.metadata}
    return Shown(who, piece, data or None, known or None, item.is_result)


def _joint(segment: Segment) -> object:
    """Neighbours with the same one are written as one; None if it has to stand alone."""
    match segment:
        case Text():
            return (segment.ranks, segment.stderr)
        case Alike():
            return (tuple(said.ranks for said in segment.texts), segment.stderr)
    return None


def _merged(segments: Iterable[Segment]) -> list[Segment]:
    """Lines that follow each other on the same ranks, together."""
    found: list[list[Segment]] = []
    for segment in segments:
        joint = _joint(segment)
        if found and joint is not None and _joint(found[-1][-1]) == joint:
            found[-1].append(segment)
        else:
            found.append([segment])
    return [_as_one(same) for same in found]


def _as_one(same: list[Segment]) -> Segment:
    first = same[0]
    if isinstance(first, Text):
        return Text(first.ranks, "\n".join(s.text for s in same if isinstance(s, Text)), first.stderr)
    if isinstance(first, Alike):
        lines = zip(*(s.texts for s in same if isinstance(s, Alike)), strict=True)
        texts = [Said(column[0].ranks, "\n".join(said.text for said in column)) for column in lines]
        return Alike(texts, first.stderr)
    return first


def _parts(segment: Segment) -> int:
    return len(segment.texts) if isinstance(segment, Alike) else 1


def _weight(segment: Segment) -> int:
    match segment:
        case Text() | Gap():
            return _length(segment.text)
        case Alike():
            return sum(_length(said.text) for said in segment.texts)
        case Shown():
            return sum(map(_length, (segment.data or {}).values()))


def _length(value: Any) -> int:
    """Bytes of the value as it is written, about."""
    if isinstance(value, str):
        return size(value) + value.count('"') + value.count("\\") + 5 * value.count("\x1b")
    return size(json.dumps(value, ensure_ascii=False))


@lru_cache(maxsize=1024)
def _written(ranks: tuple[int, ...]) -> str:
    return str(RankSet(ranks))


# what went wrong


def _failing(view: RunView, failure: Failure, traceback: Piece | None, most: int) -> Failing:
    return Failing(
        ranks=str(RankSet(failure.ranks)),
        state=failure.kind,
        headline=cut(headline(failure, located(failure.ranks, view.topology), view.timeout), most),
        place=cut(failure.place, most),
        traceback=traceback,
        is_echo=failure.is_echo,
    )


def _finding(view: RunView, most: int) -> Finding | None:
    v = view.verdict
    if v is None:
        return None
    is_over = view.state == "done"
    first = v.final_headline if is_over else v.headline
    ways = [] if is_over else [WayOut(way.command, way.effect) for way in v.ways]
    details = [cut(ansi.strip(line), most) for line in v.details[:_DETAILS]]
    return Finding(cut(ansi.strip(first), most), v.is_certain, details, ways)
