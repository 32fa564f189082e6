"""Clocks: made-up skews are found, within the error that is said; what contradicts itself is noticed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.client.trace.clocks import estimate
from jdist.client.trace.match_calls import match
from jdist.client.trace.timeline import timeline
from jdist.core.messages.observation import RankTrace
from support.madeup import EPOCH, answer, call, noise, shifted, steps, trace

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
Trips = dict[int, tuple[float, float]]


def skewed(traced: dict[int, RankTrace], skews: dict[str, float], seed: int = 0) -> tuple[dict[int, RankTrace], Trips]:
    """The ranks' answers by their hosts' clocks, and trips of some milliseconds each way."""
    made = random.Random(seed)
    trips = {r: (t.now - made.random() * 0.02, t.now + made.random() * 0.02) for r, t in traced.items()}
    return {r: shifted(t, skews[HOSTS[r]]) for r, t in traced.items()}, trips


@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(0, 99), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_skew_is_found_within_the_stated_error(b: float, c: float, seed: int, has_ends: bool) -> None:
    skews = {"a": 0.0, "b": b, "c": c}
    traced, trips = skewed(steps(6, 8, noise(seed, 0.1)), skews, seed)
    meetings = match(traced, {})
    found = estimate(traced, meetings, HOSTS, trips, are_ends_true=has_ends)
    assert not found.moved
    for host, skew in skews.items():
        assert abs(found.offsets[host] - skew) <= found.errors[host] + 1e-6
        assert found.errors[host] < 0.041
    if has_ends:  # all leave a collective at once: that is nearer than any bound
        assert found.offsets == pytest.approx(skews, abs=1e-6)
        rows = timeline(traced, meetings, HOSTS, found).rows
        for number in range(8):
            bars = [row.bars[number] for row in rows]
            assert min(x.ended for x in bars) >= max(x.began for x in bars) - 1e-6


def test_ends_alone_are_enough() -> None:
    skews = {"a": 0.0, "b": 3.0, "c": -1.0}
    traced, _ = skewed(steps(6, 8, noise(1, 0.1), cost=0.01), skews)
    found = estimate(traced, match(traced, {}), HOSTS, {})
    assert found.offsets == pytest.approx(skews, abs=1e-5)
    assert all(0 < found.errors[h] < 0.2 for h in "bc")


def test_messages_bound_too() -> None:
    """There and back: each arrives after it was sent, whatever the clocks show."""
    there = {0: call("send", 1, 1.2, peer=2), 2: call("recv", 0, 1.2, peer=0)}
    back = {2: call("send", 2, 2.2, peer=0), 0: call("recv", 1.5, 2.2, peer=2)}
    traced = {0: answer(there[0], back[0]), 2: shifted(answer(there[2], back[2]), 4.0)}
    found = estimate(traced, match(traced, {}), HOSTS, {})
    assert abs(found.offsets["b"] - 4.0) <= found.errors["b"] <= 0.2 + 1e-6


def test_one_host_has_one_clock() -> None:
    traced = steps(2, 3, noise(2, 0.1))
    found = estimate(traced, match(traced, {}), HOSTS, {})
    assert (found.offsets, found.error) == ({"a": 0.0}, 0.0)


def test_a_clock_that_was_set_is_noticed() -> None:
    traced, trips = skewed(steps(6, 8, noise(3, 0.1)), {"a": 0.0, "b": 0.0, "c": 0.0})
    later = shifted(traced[2], 5.0)
    halves = traced[2].calls[:4] + later.calls[4:]
    traced[2] = RankTrace(3, halves, traced[2].began, later.ended, later.now)
    traced[3] = RankTrace(3, traced[3].calls[:4] + shifted(traced[3], 5.0).calls[4:], EPOCH, None, later.now)
    found = estimate(traced, match(traced, {}), HOSTS, trips)
    assert found.moved
    assert found.offsets["b"] == pytest.approx(5.0, abs=0.05), "what the clocks show now is what the answers say"


def test_nothing_known_is_no_correction() -> None:
    found = estimate({0: answer(), 2: answer()}, [], HOSTS, {})
    assert found.offsets == {"a": 0.0, "b": 0.0}
    assert found.error == float("inf")


def test_nodes_on_one_host_share_its_clock() -> None:
    found = trace(dict(steps(4, 5, noise(4, 0.1))), (2, 2), ("box", "box"))
    assert found.report.timeline.clocks.offsets == {"box": 0.0}


def test_hosts_of_one_name_are_told_apart_by_their_times() -> None:
    """Containers and badly named machines: both say localhost."""
    traced = steps(4, 5, noise(5, 0.1))
    answers = {r: shifted(t, 2.0) if r > 1 else t for r, t in traced.items()}
    trips = {r: (t.now - 0.001, t.now + 0.001) for r, t in traced.items()}
    found = trace(dict(answers), (2, 2), ("localhost", "localhost"), trips=trips)
    assert found.report.timeline.clocks.offsets == pytest.approx({"node 0": 0.0, "node 1": 2.0}, abs=1e-5)


def test_with_nccl_ends_say_nothing_of_clocks() -> None:
    """Its calls return when the operation is queued, long before the others came."""
    queued = {r: answer(call("all_reduce", 1 + r, 1.001 + r)) for r in range(4)}
    found = trace(dict(queued), (2, 2), ("a", "b"), backend="nccl")
    assert found.report.timeline.clocks.offsets["b"] == pytest.approx(0.0, abs=1e-3)
    assert not found.report.timeline.clocks.moved
