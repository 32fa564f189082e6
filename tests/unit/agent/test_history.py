"""History: points are means and peaks of samples, their limits stay in place, and memory is bounded."""

from __future__ import annotations

import math

import pytest

from jdist.agent.resources import Usage, UsageHistory


def filled(count: int, capacity: int = 3600) -> UsageHistory:
    """A sample a second: the node's cpu is the second, worker 0's memory ten times that, worker 1 comes at 5."""
    history = UsageHistory(capacity)
    for second in range(count):
        processes = {0: {"memory": 10.0 * second}} | ({1: {"cpu": 1.0}} if second >= 5 else {})
        history.add(float(second), Usage({"cpu": float(second)}, processes))
    return history


def test_each_point_is_the_mean_of_its_samples_or_their_peak() -> None:
    ages, node, workers = filled(20).read(20.0, 10, 2)
    assert ages == (6.0, 1.0)
    assert node == {"cpu": (12.0, 17.0)}
    assert workers[0] == {"memory": (140.0, 190.0)}


def test_a_worker_that_came_later_is_unknown_before() -> None:
    _, _, workers = filled(8).read(8.0, 8, 8)
    assert [math.isnan(value) for value in workers[1]["cpu"]] == [True] * 5 + [False] * 3
    _, _, workers = filled(8).read(8.0, 8, 2)
    assert workers[1]["cpu"] == (pytest.approx(math.nan, nan_ok=True), 1.0), "of 4 samples, one is not known"


def test_limits_between_points_stay_in_place() -> None:
    history = filled(20)
    _, before, _ = history.read(20.0, 20, 4)
    history.add(20.0, Usage({"cpu": 20.0}, {}))
    _, after, _ = history.read(21.0, 20, 4)
    assert set(after["cpu"][:-1]) <= set(before["cpu"]), "points that were complete have not changed"


def test_nothing_there() -> None:
    assert UsageHistory().read(5.0, 60, 10) == ((), {}, {})
    assert filled(3).read(1000.0, 60, 10) == ((), {}, {})


def test_there_are_never_more_points_than_wanted() -> None:
    for seconds in range(1, 30):
        for points in range(1, 12):
            ages, node, _ = filled(25).read(25.3, seconds, points)
            assert len(ages) == len(node.get("cpu", ())) <= points
            assert list(ages) == sorted(ages, reverse=True)


def test_memory_is_bounded_and_those_who_left_are_forgotten() -> None:
    history = filled(10, capacity=10)
    for second in range(10, 200):
        history.add(float(second), Usage({"cpu": float(second)}, {7: {"cpu": 1.0}}))
    ages, node, workers = history.read(200.0, 1000, 1000)
    assert 10 <= len(ages) < 20
    assert node["cpu"][-1] == 199.0
    assert set(workers) == {7}
