"""Series of a run: points of many ranks come together in bounded memory, and all are of the same steps."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.core import metrics as module
from jdist.core.messages.runs import MetricPoints, MetricsLogged
from jdist.core.metrics import RunMetrics
from jdist.worker.metrics import MetricBuffer


def points(rank: int, name: str, steps: range, count: int, stride: int = 1) -> MetricPoints:
    """Points whose step is their index, and their value twice that."""
    columns = array("q", steps), array("d", [2.0 * s for s in steps]), array("d", [float(s) for s in steps])
    newest = (count - 1, 2.0 * (count - 1), float(count - 1))
    return MetricPoints(rank, name, *(c.tobytes() for c in columns), steps.start, stride, count, newest)


def test_points_of_ranks_and_names_are_kept_apart_and_in_order() -> None:
    metrics = RunMetrics(1)
    metrics.feed(MetricsLogged(1, (points(1, "loss", range(3), 3), points(0, "loss", range(2), 2))))
    metrics.feed(MetricsLogged(1, (points(1, "loss", range(3, 5), 5), points(0, "lr", range(1), 1))))
    found = metrics.snapshot()
    assert list(found) == ["loss", "lr"]
    assert list(found["loss"]) == [0, 1]
    assert list(found["loss"][1].steps) == [0, 1, 2, 3, 4]
    assert list(found["loss"][1].values) == [0, 2, 4, 6, 8]
    assert list(found["loss"][0].steps) == [0, 1]
    metrics.feed(MetricsLogged(1, (points(1, "loss", range(5, 6), 6),)))
    assert list(found["loss"][1].steps) == [0, 1, 2, 3, 4], "a snapshot does not change"


def test_ranks_that_are_thinned_differently_are_shown_with_the_same_steps() -> None:
    metrics = RunMetrics(1)
    metrics.feed(MetricsLogged(1, (points(0, "loss", range(100), 100), points(1, "loss", range(100), 100))))
    metrics.feed(MetricsLogged(1, (points(1, "loss", range(100, 200, 4), 200, 4),)))
    metrics.feed(MetricsLogged(1, (points(0, "loss", range(100, 200), 200),)))
    found = metrics.snapshot()["loss"]
    assert list(found[0].steps) == list(found[1].steps) == list(range(0, 200, 4))


@given(st.lists(st.integers(0, 400), min_size=1, max_size=30), st.integers(1, 3))
def test_a_series_stays_small_and_even_however_it_comes(batches: list[int], names: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jdist.worker.metrics.MOST_POINTS", 64)
        patch.setattr(module, "_MOST_OF_ONE", 100)
        patch.setattr(module, "_LEAST_OF_ONE", 10)
        patch.setattr(module, "_MOST_OF_ALL", 150)
        buffer, metrics, total = MetricBuffer(0), RunMetrics(1), 0
        buffer.begin(1)
        for size in batches:
            for step in range(total, total + size):
                buffer.add(step, {f"n{k}": float(step) for k in range(names)})
            total += size
            metrics.feed(MetricsLogged(*buffer.take()))
        for ranks in metrics.snapshot().values():
            each = ranks[0]
            assert len(each.steps) <= 100
            assert list(each.steps) == [float(v) for v in each.values] == list(range(0, total, each.stride))
            assert (each.count, each.newest[0]) == (total, total - 1)


def test_points_that_come_again_count_once() -> None:
    metrics = RunMetrics(1)
    messages = [points(0, "loss", range(4), 4), points(0, "loss", range(4, 7), 7), points(0, "loss", range(7, 9), 9)]
    for each in (*messages[:2], *messages, points(0, "loss", range(6, 12), 12), messages[2]):
        metrics.feed(MetricsLogged(1, (each,)))
    assert list(metrics.snapshot()["loss"][0].steps) == list(range(12))


def test_a_record_that_begins_with_a_message_without_points_goes_on_with_the_series() -> None:
    """Of a series that its rank has thinned, a message may have no point, and the index of an earlier one."""
    client, record = RunMetrics(1), RunMetrics(1)
    client.feed(MetricsLogged(1, (points(0, "loss", range(0, 104, 8), 103, 8),)))
    for each in (points(0, "loss", range(96, 96), 103, 8), points(0, "loss", range(104, 112, 8), 112, 8)):
        record.feed(MetricsLogged(1, (each,)))
    client.feed(record.message())
    assert list(client.snapshot()["loss"][0].steps) == list(range(0, 112, 8))


@pytest.mark.parametrize("count", [2, 12])
def test_another_process_in_the_ranks_place_begins_anew(count: int) -> None:
    metrics = RunMetrics(1)
    metrics.feed(MetricsLogged(1, (points(0, "loss", range(5), 5),)))
    later = array("d", [100.0 + s for s in range(count)]).tobytes()
    fresh = points(0, "loss", range(count), count)
    fresh = msgspec.structs.replace(fresh, times=later, newest=(count - 1, 0.0, 99.0 + count))
    metrics.feed(MetricsLogged(1, (fresh,)))
    found = metrics.snapshot()["loss"][0]
    assert (list(found.steps), found.count) == (list(range(count)), count)


def test_a_client_that_follows_late_gets_even_series_as_well() -> None:
    metrics = RunMetrics(1)
    metrics.feed(MetricsLogged(1, (points(0, "loss", range(7, 20), 20),)))
    metrics.feed(MetricsLogged(1, (points(0, "loss", range(20, 40, 4), 40, 4),)))
    assert list(metrics.snapshot()["loss"][0].steps) == list(range(8, 40, 4))


def test_names_are_limited() -> None:
    metrics = RunMetrics(1)
    for i in range(300):
        metrics.feed(MetricsLogged(1, (points(0, f"n{i}", range(1), 1),)))
    assert len(metrics.snapshot()) == 200
