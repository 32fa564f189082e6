"""What is logged on a rank: numbers of all kinds, steps that are counted, columns that stay small, and refusals."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import jdist
from jdist.core.errors import UsageError
from jdist.core.messages.runs import MetricPoints, MetricsLogged
from jdist.worker import metrics
from jdist.worker.metrics import MOST_NAMES, MOST_POINTS, DeviceNumber, MetricBuffer, MetricPublisher
from support.waits import eventually

WORKER = 7


@pytest.fixture
def buffer() -> Iterator[MetricBuffer]:
    buffer = MetricBuffer(WORKER)
    buffer.begin(1)
    metrics.connect(buffer)
    yield buffer
    metrics.disconnect()


def steps(points: MetricPoints) -> list[int]:
    return list(array("q", points.steps))


def values(points: MetricPoints) -> list[float]:
    return list(array("d", points.values))


def taken(buffer: MetricBuffer) -> dict[str, MetricPoints]:
    return {points.name: points for points in buffer.take()[1]}


def test_outside_of_a_cluster_nothing_happens() -> None:
    assert jdist.log(loss=1.0, text="not even looked at") is None


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        np.float32(2),
        np.int64(2),
        np.array(2),
        np.array([[2.0]]),
        torch.tensor(2),
        torch.tensor(2.0, requires_grad=True) * 1,
        torch.tensor([2.0], dtype=torch.bfloat16),
        Fraction(4, 2),
    ],
    ids=repr,
)
def test_numbers_of_all_kinds(buffer: MetricBuffer, value: Any) -> None:
    jdist.log(x=value, step=3)
    points = taken(buffer)["x"]
    assert (steps(points), values(points), points.rank) == ([3], [2.0], WORKER)


def test_a_tensor_that_changes_later_was_logged_as_it_was(buffer: MetricBuffer) -> None:
    total = torch.zeros(())
    for _ in range(3):
        total += 1
        jdist.log(total=total)
    assert values(taken(buffer)["total"]) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0.5", r"loss is '0.5' \(str\), not one number"),
        (None, r"loss is None \(NoneType\)"),
        (torch.ones(2, 3), r"loss is a tensor of shape \[2, 3\], not one number; log .*loss=loss.mean"),
        (torch.ones(0), r"a tensor of shape \[0\]"),
        (torch.tensor(1j), "a tensor of torch.complex64"),
        (torch.ones((), device="meta"), "meta device"),
        (np.ones(4), r"an array of shape \[4\]"),
        (1j, "complex"),
        (np.array("a"), "not one number"),
        (10**400, "too large"),
    ],
)
def test_what_is_no_number_is_refused_by_name(buffer: MetricBuffer, value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        jdist.log(loss=value)
    assert taken(buffer) == {}


@pytest.mark.parametrize("step", [1.5, "3", 2**70, -(2**63)])
def test_a_step_that_is_no_step_is_refused(buffer: MetricBuffer, step: Any) -> None:
    with pytest.raises(UsageError, match="step"):
        jdist.log(step=step, x=1)
    assert taken(buffer) == {}


def test_steps_are_counted_for_each_set_of_names(buffer: MetricBuffer) -> None:
    for _ in range(2):
        jdist.log(loss=1)
        jdist.log(loss=1, lr=1)
    jdist.log(np.int32(10), loss=1)
    found = taken(buffer)
    assert steps(found["loss"]) == [0, 0, 1, 1, 10]
    assert steps(found["lr"]) == [0, 1]


def test_each_run_counts_anew_and_an_inner_one_leaves_the_outer_as_it_was(buffer: MetricBuffer) -> None:
    jdist.log(loss=1)
    assert buffer.take()[0] == 1
    buffer.begin(2, is_inner=True)
    jdist.log(loss=1)
    run, points = buffer.take()
    assert (run, steps(points[0])) == (2, [0])
    buffer.begin(1, is_inner=True)
    jdist.log(loss=1)
    run, points = buffer.take()
    assert (run, steps(points[0]), points[0].count) == (1, [1], 2)
    buffer.begin(3)
    jdist.log(loss=1)
    assert steps(taken(buffer)["loss"]) == [0]


def test_only_what_is_new_is_taken(buffer: MetricBuffer) -> None:
    jdist.log(loss=1, lr=1)
    assert set(taken(buffer)) == {"loss", "lr"}
    jdist.log(loss=2)
    found = taken(buffer)
    assert set(found) == {"loss"}
    assert (found["loss"].first, found["loss"].count, values(found["loss"])) == (1, 2, [2.0])
    assert taken(buffer) == {}


@pytest.mark.parametrize("every", [1000, 10**9])
def test_of_very_many_points_every_nth_is_kept_with_the_newest(buffer: MetricBuffer, every: int) -> None:
    found = []
    for i in range(3 * MOST_POINTS + 1):
        jdist.log(loss=float(i), step=i)
        if i % every == every - 1:
            found.append(taken(buffer)["loss"])
    found.append(taken(buffer)["loss"])
    for points in found:
        assert points.first % points.stride == 0
        assert steps(points) == [points.first + k * points.stride for k in range(len(steps(points)))]
    assert found[-1].stride == 4
    assert found[-1].newest[:2] == (3 * MOST_POINTS, 3.0 * MOST_POINTS)
    assert found[-1].count == 3 * MOST_POINTS + 1
    assert sum(len(steps(points)) for points in found) <= MOST_POINTS * 1.8
    last = found[-1]
    assert last.first <= last.count - 1 < last.first + len(steps(last)) * last.stride + last.stride


def test_numbers_that_are_not_finite_are_found_also_between_the_kept_ones(buffer: MetricBuffer) -> None:
    for i in range(2 * MOST_POINTS):
        jdist.log(loss=math.nan if i == 2 * MOST_POINTS - 3 else 1.0, step=i)
    points = taken(buffer)["loss"]
    assert not any(map(math.isnan, values(points)))
    assert (points.nonfinite, points.first_nonfinite, points.nonfinite_since) == (1, 2 * MOST_POINTS - 3, None)
    jdist.log(loss=math.inf, step=50_000)
    jdist.log(loss=math.nan, step=50_001)
    points = taken(buffer)["loss"]
    assert (points.nonfinite, points.nonfinite_since) == (3, 50_000)


def test_names_are_limited(buffer: MetricBuffer) -> None:
    for i in range(MOST_NAMES):
        jdist.log(**{f"layer{i}/norm": 1.0})
    with pytest.raises(UsageError, match="one name too many"):
        jdist.log(another=1.0)
    buffer.begin(2)
    jdist.log(another=1.0)
    with pytest.raises(UsageError, match="201 characters"):
        jdist.log(**{"a" * 201: 1.0})


class Late(DeviceNumber):
    """A number that comes when it is told."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.has_failed = False

    def read(self) -> float | None:
        if self.has_failed:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return self.value


def test_a_number_on_its_way_from_a_gpu_holds_back_the_later_ones(
    buffer: MetricBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late()
    monkeypatch.setattr("jdist.worker.metrics.number", lambda name, value: value)
    monkeypatch.setattr("jdist.worker.metrics.DeviceNumber", Late)
    jdist.log(loss=1.0)
    jdist.log(loss=late)
    jdist.log(loss=3.0)
    assert values(taken(buffer)["loss"]) == [1.0]
    assert buffer.is_waiting
    late.value = 2.0
    found = taken(buffer)["loss"]
    assert (steps(found), values(found)) == ([1, 2], [2.0, 3.0])
    assert not buffer.is_waiting


def test_numbers_of_a_device_that_failed_are_dropped_and_the_rest_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jdist.worker.metrics.number", lambda name, value: value)
    monkeypatch.setattr("jdist.worker.metrics.DeviceNumber", Late)
    sent: list[MetricsLogged] = []
    publisher = MetricPublisher(WORKER, sent.append)
    publisher.begin(1)
    late = Late()
    publisher.buffer.add(0, {"loss": late, "lr": 0.5})
    publisher.flush()
    assert not sent
    late.has_failed = True
    publisher.buffer.add(1, {"loss": late})
    publisher.end()
    publisher.begin(2)
    publisher.buffer.add(0, {"loss": 1.0})
    publisher.end()
    told = [(logged.run, points.name, values(points)) for logged in sent for points in logged.points]
    assert told == [(1, "lr", [0.5]), (2, "loss", [1.0])]


def test_threads_log_at_once_and_nothing_is_lost() -> None:
    sent: list[MetricsLogged] = []
    publisher = MetricPublisher(WORKER, sent.append)
    publisher.begin(1)
    each = 3000

    def work(name: str) -> None:
        for i in range(each):
            publisher.buffer.add(i, {name: float(i)})

    threads = [threading.Thread(target=work, args=(f"n{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher.end()
    for i in range(4):
        assert [s for m in sent for p in m.points if p.name == f"n{i}" for s in steps(p)] == list(range(each))


def test_what_is_logged_is_published_soon_by_itself_and_at_the_end_at_once() -> None:
    sent: list[MetricsLogged] = []
    publisher = MetricPublisher(WORKER, sent.append)
    publisher.begin(5)
    publisher.buffer.add(None, {"loss": 1.0})
    publisher.end()
    assert [(m.run, values(m.points[0])) for m in sent] == [(5, [1.0])]
    publisher.buffer.add(None, {"loss": 2.0})
    assert eventually(lambda: len(sent) == 2)
    publisher.buffer.add(None, {"loss": 3.0})
    publisher.begin(6)
    assert [(m.run, values(m.points[0])) for m in sent[1:]] == [(5, [2.0]), (5, [3.0])]
