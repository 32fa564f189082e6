"""Marks: the ranks that a user should look at are found, and no others."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from jdist.client.metrics.logged import marks
from jdist.core.messages.runs import MetricsLogged
from jdist.core.metrics import MetricSeries, RunMetrics
from jdist.worker.metrics import MetricBuffer


def series(*ranks: Sequence[float], name: str = "loss") -> dict[str, dict[int, MetricSeries]]:
    """A name on ranks that have logged these values, one a step."""
    metrics = RunMetrics(1)
    for rank, values in enumerate(ranks):
        buffer = MetricBuffer(rank)
        buffer.begin(1)
        for value in values:
            buffer.add(None, {name: value})
        metrics.feed(MetricsLogged(*buffer.take()))
    return metrics.snapshot()


def texts(*ranks: Sequence[float]) -> list[str]:
    return [mark.text for mark in marks(series(*ranks))]


def noisy(size: int, rank: int, level: float = 1.0) -> list[float]:
    return [level + 0.05 * math.sin(7 * i + 3 * rank) for i in range(size)]


def test_ranks_that_agree_are_not_marked() -> None:
    assert texts(*(noisy(100, rank) for rank in range(4))) == []
    assert texts([0.1] * 50, [0.1] * 50, [0.1] * 50) == []
    assert texts([0.0] * 50, [0.0] * 50, [0.0] * 50) == []
    assert texts([1.0], [5.0]) == [], "of two, none is the odd one"


def test_nan_since_a_step() -> None:
    ranks = [noisy(150, rank) for rank in range(4)]
    ranks[3][120:] = [math.nan] * 30
    assert texts(*ranks) == ["rank 3: loss is NaN since step 120"]
    ranks[1][120:] = [math.nan] * 30
    assert texts(*ranks) == ["ranks 1, 3: loss is NaN since step 120"]


def test_infinite_at_the_newest_step_and_nan_that_has_passed() -> None:
    ranks = [noisy(50, rank) for rank in range(4)]
    ranks[0][-1] = -math.inf
    ranks[1][7] = math.nan
    ranks[2][7] = ranks[2][9] = math.inf
    assert texts(*ranks) == [
        "rank 0: loss is -inf at step 49",
        "rank 1: loss was NaN or infinite at step 7",
        "rank 2: loss was NaN or infinite 2 times, first at step 7",
    ]


def test_a_rank_far_from_the_others() -> None:
    ranks = [noisy(60, rank) for rank in range(4)]
    ranks[2] = noisy(60, 2, level=3.0)
    (found,) = texts(*ranks)
    assert found.startswith("rank 2: loss is 2.99")
    assert "far from the other ranks' 1" in found


def test_one_outlier_among_the_newest_points_is_no_divergence() -> None:
    ranks = [noisy(60, rank) for rank in range(4)]
    ranks[2][-1] = 3.0
    assert texts(*ranks) == []


def test_a_rank_that_is_behind() -> None:
    ranks = [noisy(200, rank) for rank in range(4)]
    assert texts(*ranks[:3], ranks[3][:150]) == ["rank 3: loss is at step 149, 50 behind the other ranks"]
    assert texts(*ranks[:3], ranks[3][:190]) == [], "a few steps are nothing"
    assert texts(ranks[0], ranks[1][:100]) == ["rank 1: loss is at step 99, 100 behind the other ranks"]
    late = {0: series([1.0] * 5)["loss"][0]}
    assert marks({"loss": late}) == []


def test_columns_without_points_are_no_fault() -> None:
    """As those of a client that attached when only the newest point was to come."""
    empty = MetricSeries(array("q"), array("d"), array("d"), 0, 4, 7, (6, 1.0, 0.0), 0, 0, None)
    assert marks({"loss": {0: empty, 1: empty, 2: empty}}) == []
