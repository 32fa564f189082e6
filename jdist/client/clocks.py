"""Clocks: how far nodes' wall clocks are ahead, by the midpoint of a round trip to each (RFC 5905, section 8)."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Self

from msgspec import Struct

from jdist.client.link import Link
from jdist.core.messages.nodes import ClockReading, ReadClock
from jdist.core.messages.status import ClusterFacts

_READINGS = 5
_SAME_HOST_ERROR = 2e-3  # Seconds beyond their errors by which clocks of nodes with one host name may differ.


class Clock(Struct, frozen=True):
    """A node's wall clock against the asker's: ``offset`` seconds ahead, known to within ``error`` seconds."""

    offset: float
    error: float

    @classmethod
    def measured(cls, asked: float, there: float) -> Self:
        """The clock that showed ``there`` in an answer received now to a query sent at ``asked``."""
        now = time.time()
        return cls(there - (asked + now) / 2, max(0.0, now - asked) / 2)


async def read_clocks(link: Link, places: Iterable[int], timeout: float, readings: int = _READINGS) -> dict[int, Clock]:
    """The clocks of nodes, by the places of their agents; without those that do not answer."""
    asked = tuple(places)
    found = await asyncio.gather(*(_read_clock(link, place, timeout, readings) for place in asked))
    return {place: clock for place, clock in zip(asked, found, strict=True) if clock is not None}


async def _read_clock(link: Link, place: int, timeout: float, readings: int) -> Clock | None:
    """Of several readings, the one with the shortest round trip."""
    best: Clock | None = None
    for _ in range(readings):
        asked = time.time()
        answer = (await link.query_nodes((place,), ReadClock(), timeout))[place]
        if not isinstance(answer, ClockReading):
            break
        found = Clock.measured(asked, answer.now)
        if best is None or found.error < best.error:
            best = found
    return best


class Clocks(Struct, frozen=True):
    """How far each rank's clock is ahead, in seconds; ``error`` is the largest error between two of them."""

    offsets: Mapping[int, float]
    error: float

    @classmethod
    def of_ranks(cls, ranks: Iterable[int], clocks: Mapping[int, Clock], facts: ClusterFacts) -> "Clocks":
        """The ranks' clocks, from those of their nodes by place.

        Nodes with one host name share a clock, unless their readings contradict that, as in badly named containers.
        """
        places = {rank: facts.topology.place(rank) for rank in ranks}
        used = sorted(set(places.values()))
        if len(used) < 2:
            return cls(dict.fromkeys(places, 0.0), 0.0)
        known = {place: clocks.get(place, Clock(0.0, float("inf"))) for place in used}
        best: dict[str, int] = {}  # By host, the place with the most precise clock.
        for place in sorted(used, key=lambda p: known[p].error):
            best.setdefault(facts.hostnames[place], place)
        shared = {place: best[facts.hostnames[place]] for place in used}
        if all(_may_share(known[a], known[b]) for a, b in shared.items()):
            used = sorted(best.values())
        else:
            shared = {place: place for place in used}
        errors = sorted(known[place].error for place in used)
        error = sum(errors[-2:]) if len(used) > 1 else 0.0
        return cls({rank: known[shared[place]].offset for rank, place in places.items()}, error)


def _may_share(a: Clock, b: Clock) -> bool:
    return abs(a.offset - b.offset) <= a.error + b.error + _SAME_HOST_ERROR
