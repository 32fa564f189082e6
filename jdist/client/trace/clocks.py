"""Clocks: the offsets between the hosts' clocks, within bounds that follow from cause and effect. Pure.

Let o(h) be the offset of host h's clock. No operation ends before the ranks that it needs have entered it, so a call
that ended at e on host a and needed one that began at s on host b gives o(a) - o(b) <= e - s. An answer stamped n on
host a, requested at t and received at u by the client's clock, gives n - u <= o(a) - o(client) <= n - t (Cristian
1989). Bounds add up along chains: the tightest are the shortest paths (Floyd and Warshall) in the graph of all hosts.

Within its interval, an offset is set where the ends of collectives that need every rank come nearest to each other (the
median of their differences: the last rank to enter releases all at once), else in the middle. Hosts are fixed in turn,
each tightening the intervals of the next, so no rank is drawn to leave before another has entered. The farther edge of
the interval is the offset's largest possible error, for clocks that run at the same speed.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import Struct

from jdist.client.trace.match_calls import Meeting, Traces, awaited, needs_everyone

Trips = Mapping[int, tuple[float, float]]  # When each rank was queried, and its answer arrived, by the client's clock.
Hosts = Mapping[int, str]  # By rank.
_CLIENT = ""
_Bounds = dict[tuple[str, str], float]  # `[a, b]`: the most seconds by which a's clock can be ahead of b's.


class Clocks(Struct, frozen=True):
    """Offsets and their bounds, seconds, by host; the first host's offset is 0."""

    offsets: dict[str, float]
    errors: dict[str, float]  # The largest error of each offset; inf where nothing bounds it.
    moved: bool = False  # The bounds contradict each other: a clock ran at another speed or was set during the run.

    @property
    def error(self) -> float:
        """The largest error between times of two hosts."""
        return sum(sorted(self.errors.values())[-2:])


def estimate(
    traced: Traces, meetings: Sequence[Meeting], hosts: Hosts, trips: Trips, *, are_ends_true: bool = True
) -> Clocks:
    """The hosts' clocks. Only trips count unless ``are_ends_true``: NCCL's calls return before their operations end."""
    names = list(dict.fromkeys(hosts[r] for r in sorted(traced)))
    if len(names) < 2:
        return Clocks(dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0))
    by_trips: _Bounds = {}
    for rank in trips.keys() & traced.keys():
        host, now, (sent, received) = hosts[rank], traced[rank].now, trips[rank]
        _tighten(by_trips, host, _CLIENT, now - sent)
        _tighten(by_trips, _CLIENT, host, received - now)
    by_ends, near = _from_ends(traced, meetings, hosts, names[0]) if are_ends_true else ({}, {})
    both = {key: min(by_trips.get(key, math.inf), by_ends.get(key, math.inf)) for key in {**by_trips, **by_ends}}
    for bounds in (both, by_ends, by_trips):
        closed = _close(bounds, [*names, _CLIENT])[:-1, :-1]
        joins = all(map(math.isfinite, closed.flat))
        if min(closed.diagonal()) >= 0 and (bounds is by_trips or joins):
            return _fix(closed, names, {} if bounds is by_trips else near, moved=bounds is not both)
    return _fix(_close({}, names), names, {}, moved=True)


def _from_ends(
    traced: Traces, meetings: Sequence[Meeting], hosts: Hosts, base: str
) -> tuple[_Bounds, dict[str, float]]:
    """The bounds, and the median by which collectives end later on each host than on ``base``, by their clocks."""
    bounds: _Bounds = {}
    later: dict[str, list[float]] = defaultdict(list)
    for meeting in meetings:
        calls = {rank: traced[rank].calls[i] for rank, i in meeting.calls.items()}
        starts: dict[str, float] = {}
        ends: dict[str, list[float]] = defaultdict(list)
        for rank, call in calls.items():
            host = hosts[rank]
            starts[host] = max(call.started, starts.get(host, -math.inf))
            if call.ended is None or not call.is_done or "send" in call.op:
                continue
            if needs_everyone(call):
                ends[host].append(call.ended)
            else:
                for other in awaited(call, rank, meeting) & calls.keys():
                    _tighten(bounds, host, hosts[other], call.ended - calls[other].started)
        for host, times in ends.items():
            for other_host, start in starts.items():
                _tighten(bounds, host, other_host, min(times) - start)
            if base in ends:
                later[host].append(median(times) - median(ends[base]))
    return bounds, {host: median(differences) for host, differences in later.items()}


def _tighten(bounds: _Bounds, a: str, b: str, most: float) -> None:
    if a != b:
        bounds[a, b] = min(most, bounds.get((a, b), math.inf))


def _close(bounds: _Bounds, names: Sequence[str]) -> Any:
    """The tightest bounds that follow, as a matrix in the order of ``names``."""
    import numpy as np

    closed = np.array([[0.0 if a == b else bounds.get((a, b), math.inf) for b in names] for a in names])
    for via in range(len(names)):
        closed = np.minimum(closed, closed[:, [via]] + closed[[via], :])
    return closed


def _fix(closed: Any, names: Sequence[str], near: Mapping[str, float], *, moved: bool) -> Clocks:
    import numpy as np

    offsets, errors = {names[0]: 0.0}, {names[0]: 0.0}
    now = closed
    for i, name in enumerate(names[1:], 1):
        most, least = float(now[i, 0]), -float(now[0, i])
        known = math.isfinite(most) and math.isfinite(least)
        guess = near.get(name, (most + least) / 2 if known else 0.0)
        offset = offsets[name] = max(least, min(most, guess))
        errors[name] = float(max(closed[i, 0] - offset, offset + closed[0, i]))
        fixed = np.minimum(now[:, [i]] + offset + now[[0], :], now[:, [0]] - offset + now[[i], :])
        now = np.minimum(now, fixed)
    return Clocks(offsets, errors, moved)
