"""Operators: the recording of one rank on the run's clock, and what its main thread was doing at any moment. Pure."""

from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from jdist.client.profile.intervals import Intervals
from jdist.core.messages.observation import RankTrace
from jdist.core.observation import Call
from jdist.core.profile import COLLECTIVE, KERNEL, LOADING, MAIN, OPERATOR, RankProfile

_COMMUNICATION = ("c10d::", "c10d_functional::", "_c10d_functional::", "record_param_comms")
_NCCL = ("nccl", "rccl")
_EARLY = 1e-4  # Seconds by which a backend's event may seem to begin before its call.


class RankOperators:
    """One rank's operators. ``starts`` and ``ends`` are seconds since the run's start."""

    def __init__(self, rank: int, profile: RankProfile, shift: float) -> None:
        """``shift`` is added to the rank's wall clock."""
        self.rank = rank
        self.profile = profile
        self.zero = profile.began + shift
        self.starts = np.frombuffer(profile.starts, "<i8") / 1e9 + self.zero
        self.ends = self.starts + np.frombuffer(profile.durations, "<i8") / 1e9
        self.name = np.frombuffer(profile.name, "<u4")
        self.thread = np.frombuffer(profile.thread, "<u2")
        self.kind = np.frombuffer(profile.kind, "u1")
        self.steps = np.asarray(profile.steps, float) + self.zero

    @cached_property
    def recorded(self) -> Intervals:
        """When recording was active."""
        windows = np.asarray(self.profile.windows, float).reshape(-1, 2) + self.zero
        return Intervals(windows[:, 0], windows[:, 1])

    def _named(self, *prefixes: str) -> Any:
        named = np.array([name.startswith(prefixes) for name in self.profile.names], bool)
        return named[self.name] if len(named) else np.zeros(0, bool)

    def _intervals(self, chosen: Any) -> Intervals:
        return Intervals(self.starts[chosen], self.ends[chosen])

    @cached_property
    def loading(self) -> Intervals:
        """When the main thread waited for a DataLoader."""
        return self._intervals(self._named(LOADING) & (self.thread == MAIN))

    @cached_property
    def computing(self) -> Intervals:
        """When the main thread was in an operator that is not part of a collective."""
        return self._intervals((self.kind == OPERATOR) & (self.thread == MAIN) & ~self._named(*_COMMUNICATION))

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
            found[i] = min(len(around), 2**16 - 1)
            around.append(end)
        return found

    @cached_property
    def _innermost(self) -> tuple[Any, Any, Any]:
        """Pieces of time, and which entry of ``names`` the main thread was in: the innermost."""
        pieces: list[tuple[float, float, int]] = []
        around: list[tuple[float, int]] = []
        at = 0.0
        main = self.on_main
        for start, end, name in zip(self.starts[main], self.ends[main], self.name[main].tolist(), strict=True):
            while around and around[-1][0] <= start:
                over, inner = around.pop()
                if over > at:
                    pieces.append((at, over, inner))
                    at = over
            if around and start > at:
                pieces.append((at, start, around[-1][1]))
            at = max(at, start)
            around.append((end, name))
        while around:
            over, inner = around.pop()
            if over > at:
                pieces.append((at, over, inner))
                at = over
        found = np.asarray(pieces, float).reshape(-1, 3)
        return found[:, 0], found[:, 1], found[:, 2].astype(int)

    def did(self, start: float, end: float) -> dict[str, float]:
        """``{name: seconds}`` of the innermost operators and scopes of the main thread between two moments."""
        starts, ends, names = self._innermost
        first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(starts, end, side="left")
        seconds: dict[str, float] = {}
        for i in range(first, last):
            length = float(min(end, ends[i]) - max(start, starts[i]))
            if length > 0:
                name = self.profile.names[names[i]]
                seconds[name] = seconds.get(name, 0.0) + length
        return seconds


def decode(data: bytes) -> RankProfile:
    """Decode a rank's profile."""
    return msgspec.msgpack.decode(data, type=RankProfile)


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
