"""Shares: how much of each rank's time was communication, and where ranks waited for whom, of a profiled run. Pure.

Every moment of a rank is counted once, for the first of these that applies: a GPU computes; a GPU is in a collective;
the main thread is in a blocking call, first waiting for others and then in the operation; it is in an operator; an
asynchronous collective, and nothing else, is in progress. All but collectives and waiting is "elsewhere".
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from jdist.client.measure.timeline import Bar, Row, Timeline
from jdist.core.messages.observation import Call, RankTrace
from jdist.core.profile import COLLECTIVE, KERNEL, LOADING, MAIN, OPERATOR, RankProfile

_COMMUNICATION = ("c10d::", "c10d_functional::", "_c10d_functional::", "record_param_comms")
_NCCL = ("nccl", "rccl")
_EARLY = 1e-4  # Seconds by which a backend's event may seem to begin before its call.

Filled = Mapping[int, frozenset[int]]  # By rank: the indices of asynchronous calls whose end is known from the profile.
Times = Any  # An array of float64, seconds.


class Intervals:
    """Moments in any of some intervals, which may overlap."""

    def __init__(self, starts: Times = (), ends: Times = ()) -> None:
        """The intervals between ``starts`` and ``ends``, pair by pair."""
        starts, ends = np.asarray(starts, float), np.asarray(ends, float)
        order = np.argsort(starts, kind="stable")
        starts, upto = starts[order], np.maximum.accumulate(ends[order]) if len(ends) else ends
        first = np.ones(len(starts), bool)
        first[1:] = starts[1:] > upto[:-1]
        last = np.append(first[1:], True) if len(first) else first
        self.starts, self.ends = starts[first], upto[last]

    def within(self, start: float, end: float) -> float:
        """Seconds of the set between two moments."""
        first, last = np.searchsorted(self.ends, start), np.searchsorted(self.starts, end)
        lengths = np.minimum(self.ends[first:last], end) - np.maximum(self.starts[first:last], start)
        return float(np.maximum(0, lengths).sum())

    def holds(self, moments: Times) -> Any:
        """Whether each of ``moments`` is in the set."""
        if not len(self.starts):
            return np.zeros(np.shape(moments), bool)
        i = np.searchsorted(self.starts, moments, side="right") - 1
        return (i >= 0) & (np.asarray(moments) < self.ends[i])


def divide(whole: Intervals, sets: Sequence[Intervals]) -> list[float]:
    """Seconds of ``whole`` in each of ``sets``, each moment counted for the first that holds it; last, in none."""
    edges = np.unique(np.concatenate([e for s in (whole, *sets) for e in (s.starts, s.ends)]))
    if len(edges) < 2:
        return [0.0] * (len(sets) + 1)
    middles, lengths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    left = whole.holds(middles)
    found = []
    for each in sets:
        mine = left & each.holds(middles)
        found.append(float(lengths[mine].sum()))
        left &= ~mine
    return [*found, float(lengths[left].sum())]


# ---------------------------------------------------------------- what was recorded


class RankOperators:
    """One rank's operators. ``starts`` and ``ends`` are seconds since the run's start."""

    def __init__(self, rank: int, profile: RankProfile, shift: float) -> None:
        """``shift`` is added to the rank's wall clock."""
        self.rank = rank
        self.profile = profile
        zero = profile.began + shift
        self.starts = np.frombuffer(profile.starts, "<i8") / 1e9 + zero
        self.ends = self.starts + np.frombuffer(profile.durations, "<i8") / 1e9
        self.name = np.frombuffer(profile.name, "<u4")
        self.thread = np.frombuffer(profile.thread, "<u2")
        self.kind = np.frombuffer(profile.kind, "u1")
        self.steps = np.asarray(profile.steps, float) + zero
        windows = np.asarray(profile.windows, float).reshape(-1, 2) + zero
        self.recorded = Intervals(windows[:, 0], windows[:, 1])

    def _named(self, *prefixes: str) -> Any:
        named = np.array([name.startswith(prefixes) for name in self.profile.names], bool)
        return named[self.name] if len(named) else np.zeros(0, bool)

    def _intervals(self, chosen: Any) -> Intervals:
        return Intervals(self.starts[chosen], self.ends[chosen])

    @cached_property
    def busy(self) -> Intervals:
        """When the main thread was in an operator that is no part of a collective, or waited for a DataLoader."""
        is_own = (self.kind == OPERATOR) & ~self._named(*_COMMUNICATION)
        return self._intervals((self.thread == MAIN) & (is_own | self._named(LOADING)))

    @cached_property
    def kernels(self) -> tuple[Intervals, Intervals]:
        """When a GPU computed, and when it was in a collective."""
        lower = np.array([any(n in name.lower() for n in _NCCL) for name in self.profile.names], bool)
        is_nccl = lower[self.name] if len(lower) else np.zeros(0, bool)
        on_gpu = self.kind == KERNEL
        return self._intervals(on_gpu & ~is_nccl), self._intervals(on_gpu & is_nccl)

    @cached_property
    def on_main(self) -> Any:
        """Indices of the main thread's own operators, by start."""
        mine = (self.thread == MAIN) & (self.kind != COLLECTIVE) & (self.kind != KERNEL)
        return np.nonzero(mine & ~self._named(*_COMMUNICATION))[0]

    @cached_property
    def depths(self) -> Any:
        """How many of :attr:`on_main` each of these is nested in."""
        found = np.zeros(len(self.on_main), np.uint16)
        around: list[float] = []
        for i, (start, end) in enumerate(zip(self.starts[self.on_main], self.ends[self.on_main], strict=True)):
            while around and around[-1] <= start:
                around.pop()
            found[i] = min(len(around), 2**8 - 1)
            around.append(end)
        return found


def with_ends(trace: RankTrace, profile: RankProfile) -> tuple[RankTrace, frozenset[int]]:
    """Add ends that only the backend saw (of asynchronous calls and DDP's); also return the indices of these calls.

    The n-th event of a kind belongs to the n-th call of that kind, as far as both are in a recorded window.
    """
    starts = np.frombuffer(profile.starts, "<i8") / 1e9 + profile.began
    ends = starts + np.frombuffer(profile.durations, "<i8") / 1e9
    name, kind = np.frombuffer(profile.name, "<u4"), np.frombuffer(profile.kind, "u1")
    events: dict[str, list[tuple[float, float]]] = {}
    for i in np.nonzero(kind == COLLECTIVE)[0]:
        op = profile.names[name[i]].partition(":")[2]
        events.setdefault(_plain(op), []).append((float(starts[i]), float(ends[i])))
    windows = np.asarray(profile.windows, float).reshape(-1, 2) + profile.began
    recorded = Intervals(windows[:, 0], windows[:, 1])
    nexts = dict.fromkeys(events, 0)
    calls: list[Call] = []
    filled = set()
    for index, call in enumerate(trace.calls):
        calls.append(call)
        own, op = events.get(_plain(call.op), ()), _plain(call.op)
        if not own or call.peer is not None or not recorded.holds(call.started):
            continue
        at = nexts[op]
        while at < len(own) and own[at][0] < call.started - _EARLY:
            at += 1
        nexts[op] = min(len(own), at + max(1, call.parts))
        last = nexts[op] - 1
        if at < len(own) and call.ended is None and call.is_done:
            calls[-1] = msgspec.structs.replace(call, ended=max(call.started, own[last][1]))
            filled.add(index)
    return msgspec.structs.replace(trace, calls=tuple(calls)), frozenset(filled)


def _plain(op: str) -> str:
    """An operation's name, normalised: ``all_gather_into_tensor``, ``_allgather_base``, …"""
    plain = op.lower().replace("_", "").removesuffix("coalesced")
    for whole in ("allreduce", "allgather", "reducescatter", "alltoall"):
        if plain.startswith(whole):
            return whole
    return plain


# ---------------------------------------------------------------- shares


class Shares(Struct, frozen=True):
    """Seconds of one rank's cell."""

    collectives: float
    waiting: float
    elsewhere: float
    unrecorded: float  # Seconds of these in which operators were not recorded.

    @property
    def communication(self) -> float:
        """The part (0 to 1) of the time that went into collectives and waiting."""
        taken = self.collectives + self.waiting
        return taken / ((taken + self.elsewhere) or 1.0)


def shares(row: Row, operators: RankOperators, filled: Filled) -> Shares:
    """How the time of the rank's cell is divided."""
    blocking = [bar for i, bar in enumerate(row.bars) if _blocks(row.rank, i, bar, filled)]
    others = [bar for i, bar in enumerate(row.bars) if not _blocks(row.rank, i, bar, filled)]
    others = [bar for bar in others if operators.recorded.holds(bar.began)]  # else what it hid behind is unknown
    kernels, nccl = operators.kernels
    sets = [kernels, nccl, _waits(blocking), _works(blocking), operators.busy, _waits(others), _works(others)]
    cell = Intervals([row.began], [row.ended])
    gpu, gpu_collectives, waits, works, busy, late, under_way, rest = divide(cell, sets)
    return Shares(
        collectives=gpu_collectives + works + under_way,
        waiting=waits + late,
        elsewhere=gpu + busy + rest,
        unrecorded=max(0.0, row.ended - row.began - operators.recorded.within(row.began, row.ended)),
    )


def _blocks(rank: int, index: int, bar: Bar, filled: Filled) -> bool:
    """Whether the main thread was in the call until it ended."""
    return index not in filled.get(rank, ()) and not bar.is_estimate


def _waits(bars: Sequence[Bar]) -> Intervals:
    return Intervals([b.began for b in bars], [b.work for b in bars])


def _works(bars: Sequence[Bar]) -> Intervals:
    return Intervals([b.work for b in bars], [b.ended for b in bars])


class Place(Struct, frozen=True):
    """The calls of one operation in one group at one line, and the rank for which the others waited most in them."""

    call: Call  # One of them.
    calls: int  # Times that ranks met there.
    last: dict[int, int]  # `{rank: times}` that the rank came last.
    waited: float  # Seconds that all ranks waited there.
    slowest: int
    caused: float  # Seconds of `waited` that they waited for it.


def places(timeline: Timeline, ranks: Mapping[int, RankOperators], filled: Filled) -> list[Place]:
    """Where ranks waited for others, longest wait first."""
    busy = {
        r: Intervals(*(np.concatenate([getattr(o.busy, e), getattr(o.kernels[0], e)]) for e in ("starts", "ends")))
        for r, o in ranks.items()
    }
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
    found = map(_place, by_place.values())
    return sorted((p for p in found if p.waited > 0), key=lambda p: -p.waited)


def _place(meetings: list[list[tuple[Bar, float]]]) -> Place:
    last: Counter[int] = Counter()
    caused: dict[int, float] = defaultdict(float)
    for bars in meetings:
        slowest = max(bars, key=lambda b: b[0].began)[0]
        last[slowest.rank] += 1
        caused[slowest.rank] += sum(waited for bar, waited in bars if bar is not slowest)
    worst = max(caused, key=lambda rank: caused[rank])
    return Place(
        call=meetings[0][0][0].call,
        calls=len(meetings),
        last=dict(last),
        waited=sum(waited for bars in meetings for _, waited in bars),
        slowest=worst,
        caused=caused[worst],
    )
