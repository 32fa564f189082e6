"""Clocks: the midpoint of a round trip is within its error, and nodes of one host share a clock."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from jdist.client.measure.timeline import Clock, Clocks, read_clocks
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.nodes import ClockReading
from support.madeup import facts, shifted, steps, trace


class Link:
    """Node n's clock is n hours ahead, and its answers take the given times one after another."""

    def __init__(self, *delays: float) -> None:
        self._delays = {node: list(delays) for node in range(3)}

    async def query_nodes(self, places: tuple[int, ...], _op: object, _timeout: float) -> dict[int, Any]:
        (place,) = places
        if place == 2:
            return {2: QueryFailed("gone")}
        await asyncio.sleep(self._delays[place].pop(0))
        return {place: ClockReading(time.time() + 3600 * place)}


def test_the_shortest_round_trip_counts_and_silent_nodes_are_left_out() -> None:
    found = asyncio.run(read_clocks(Link(0.5, 0.0, 0.5), (0, 1, 2), 30.0, 3))  # type: ignore[arg-type]
    assert found.keys() == {0, 1}
    for place, clock in found.items():
        assert clock.error < 0.2
        assert abs(clock.offset - 3600 * place) <= clock.error


def test_two_hosts_have_their_own_clocks_and_the_sum_of_their_errors() -> None:
    found = Clocks.of_ranks(range(4), {0: Clock(0.5, 0.001), 1: Clock(-2.0, 0.003)}, facts((2, 2), ("a", "b")))
    assert found.offsets == {0: 0.5, 1: 0.5, 2: -2.0, 3: -2.0}
    assert found.error == pytest.approx(0.004)


def test_nodes_on_one_host_share_the_clock_that_is_known_best() -> None:
    found = Clocks.of_ranks(range(2), {0: Clock(0.004, 0.004), 1: Clock(0.001, 0.001)}, facts((1, 1), ("box", "box")))
    assert (found.offsets, found.error) == ({0: 0.001, 1: 0.001}, 0.0)


def test_hosts_of_one_name_are_told_apart_by_their_times() -> None:
    """Containers and badly named machines: both say localhost."""
    answers = {r: shifted(t, 2.0) if r > 1 else t for r, t in steps(4, 2, lambda r, s: 1.0).items()}
    clocks = {0: Clock(0.0, 0.001), 1: Clock(2.0, 0.001)}
    found = trace(dict(answers), (2, 2), ("localhost", "localhost"), clocks=clocks).report.timeline
    assert found.clocks.offsets == {0: 0.0, 1: 0.0, 2: 2.0, 3: 2.0}
    assert sum(found.suffered.values()) == pytest.approx(0, abs=1e-6)


def test_one_node_needs_no_reading() -> None:
    assert Clocks.of_ranks(range(2), {}, facts((2,), ("a",))) == Clocks({0: 0.0, 1: 0.0}, 0.0)


def test_an_unknown_clock_is_no_correction_and_is_said() -> None:
    found = trace(dict(steps(2, 1, lambda r, s: 1.0)), (1, 1), ("a", "b"), clocks={0: Clock(0.0, 0.001)})
    assert found.report.timeline.clocks.offsets == {0: 0.0, 1: 0.0}
    assert "it is unknown how far the hosts' clocks are apart" in repr(found)
