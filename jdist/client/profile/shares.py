"""Shares: how each rank's time is divided, where it was the last to arrive, and what it was doing before. Pure.

Every moment of a rank is counted once, for the first of these that applies: a GPU computes; a GPU is in a collective;
the main thread waits for a DataLoader; it is in a blocking call, first waiting for others and then in the operation; it
is in an operator; an asynchronous collective, and nothing else, is in progress. The rest is Python itself and idle
time.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from msgspec import Struct

from jdist.client.profile.intervals import Intervals, divide
from jdist.client.profile.operators import RankOperators
from jdist.client.trace.timeline import Bar, Row, Timeline
from jdist.core.observation import Call
from jdist.core.profile import LOADING

Filled = Mapping[int, frozenset[int]]  # By rank: the indices of asynchronous calls whose end is known from the profile.
IN_PYTHON = "Python or idle"
IN_LOADING = "data loading"
UNRECORDED = "not recorded"


class Shares(Struct, frozen=True):
    """Seconds of one rank."""

    computing: float
    collectives: float
    waiting: float
    loading: float
    other: float
    unrecorded: float  # Of the cell's time; the others add up to the rest.


class Place(Struct, frozen=True):
    """The calls of one operation in one group at one line, and the rank for which the others waited most in them."""

    call: Call  # One of them.
    calls: int  # Times that ranks met there.
    last: dict[int, int]  # `{rank: times}` that the rank came last.
    waited: float  # Seconds that all ranks waited there.
    slowest: int
    caused: float  # Seconds of `waited` that they waited for it.
    instead: tuple[tuple[str, float], ...]  # What it was doing meanwhile, and for how long, longest first.
    meanwhile: float  # Seconds for which at least one other waited for it.


def shares(row: Row, operators: RankOperators, filled: Filled) -> Shares:
    """How the time of the rank's cell is divided."""
    cell = Intervals([row.began], [row.ended])
    recorded = Intervals(*_clipped(operators.recorded, row.began, row.ended))
    blocking = [b for i, b in enumerate(row.bars) if _blocks(row.rank, i, b, filled)]
    others = [b for i, b in enumerate(row.bars) if not _blocks(row.rank, i, b, filled)]
    kernels, nccl = operators.kernels
    sets = [kernels, nccl, operators.loading, _waits(blocking), _works(blocking), operators.computing]
    gpu, gpu_collectives, loading, waits, works, host, late, under_way, rest = divide(
        recorded, [*sets, _waits(others), _works(others)]
    )
    small = min(rest, operators.profile.left_out_seconds)  # operators that were too short to be kept
    return Shares(
        computing=gpu + host + small,
        collectives=gpu_collectives + works + under_way,
        waiting=waits + late,
        loading=loading,
        other=rest - small,
        unrecorded=max(0.0, cell.seconds - recorded.seconds),
    )


def _clipped(intervals: Intervals, begin: float, end: float) -> tuple[list[float], list[float]]:
    pairs = [(max(begin, s), min(end, e)) for s, e in zip(intervals.starts, intervals.ends, strict=True)]
    kept = [(s, e) for s, e in pairs if e > s]
    return [s for s, _ in kept], [e for _, e in kept]


def _blocks(rank: int, index: int, bar: Bar, filled: Filled) -> bool:
    """Whether the main thread was in the call until it ended."""
    return index not in filled.get(rank, ()) and not bar.is_estimate


def _waits(bars: list[Bar]) -> Intervals:
    return Intervals([b.began for b in bars], [b.work for b in bars])


def _works(bars: list[Bar]) -> Intervals:
    return Intervals([b.work for b in bars], [b.ended for b in bars])


def places(timeline: Timeline, ranks: Mapping[int, RankOperators], filled: Filled) -> list[Place]:
    """Where ranks waited for others, longest wait first."""
    busy = {r: Intervals(*_busy(o)) for r, o in ranks.items()}
    meetings: dict[int, list[tuple[Bar, float]]] = defaultdict(list)
    for row in timeline.rows:
        for i, bar in enumerate(row.bars):
            waited = bar.waited
            if row.rank in busy and not _blocks(row.rank, i, bar, filled):  # what it did meanwhile was no waiting
                waited = max(0.0, waited - busy[row.rank].within(bar.began, bar.work))
            meetings[bar.meeting].append((bar, waited))
    by_place: dict[tuple[str, str, int | None], list[list[tuple[Bar, float]]]] = defaultdict(list)
    for bars in meetings.values():
        if len(bars) > 1:
            call = bars[0][0].call
            by_place[call.op, call.group, call.line].append(bars)
    found = [_place(each, timeline, ranks) for each in by_place.values()]
    return sorted((p for p in found if p.waited > 0), key=lambda p: -p.waited)


def _busy(operators: RankOperators) -> tuple[list[float], list[float]]:
    sets = (operators.computing, operators.loading, operators.kernels[0])
    return [s for each in sets for s in each.starts], [e for each in sets for e in each.ends]


def _place(meetings: list[list[tuple[Bar, float]]], timeline: Timeline, ranks: Mapping[int, RankOperators]) -> Place:
    last: Counter[int] = Counter()
    caused: dict[int, float] = defaultdict(float)
    windows: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for bars in meetings:
        slowest = max(bars, key=lambda b: b[0].began)[0]
        waited = sum(w for b, w in bars if b is not slowest)
        last[slowest.rank] += 1
        caused[slowest.rank] += waited
        begun = [b.began for b, w in bars if b is not slowest and w > 0]
        if begun:
            windows[slowest.rank].append((min(begun), slowest.began))
    worst = max(caused, key=lambda r: caused[r])
    instead: Counter[str] = Counter()
    calls = next((row.bars for row in timeline.rows if row.rank == worst), ())
    inside = {name: Intervals([b.began for b in bars], [b.ended for b in bars]) for name, bars in _by_op(calls).items()}
    for start, end in windows[worst]:
        recorded = ranks[worst].recorded.within(start, end) if worst in ranks else 0.0
        did = ranks[worst].did(start, end) if recorded else {}
        for name, seconds in did.items():
            instead[IN_LOADING if name.startswith(LOADING) else name] += seconds  # type: ignore[assignment]
        if end - start > recorded:
            instead[UNRECORDED] += end - start - recorded  # type: ignore[assignment]
        left = recorded - sum(did.values())
        for op, times in inside.items():
            within = min(left, times.within(start, end))
            if within > 0:
                instead[f"in {op}"] += within  # type: ignore[assignment]
                left -= within
        if left > 0:
            instead[IN_PYTHON] += left  # type: ignore[assignment]
    return Place(
        call=meetings[0][0][0].call,
        calls=len(meetings),
        last=dict(last),
        waited=sum(w for bars in meetings for _, w in bars),
        slowest=worst,
        caused=caused[worst],
        instead=tuple(instead.most_common()),
        meanwhile=sum(end - start for start, end in windows[worst]),
    )


def _by_op(bars: tuple[Bar, ...]) -> dict[str, list[Bar]]:
    found: dict[str, list[Bar]] = defaultdict(list)
    for bar in bars:
        found[bar.call.op].append(bar)
    return found
