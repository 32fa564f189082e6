"""History: what was asked of the ranks is remembered in order, without holding any value of theirs."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest
import torch

from jdist.client.history import BroadcastStep, CellStep, History, as_python, kind_of
from jdist.client.run import CellRun
from jdist.core.messages.base import PayloadWire
from jdist.core.messages.runs import RankDone, RunEnded
from jdist.core.messages.status import Stopped
from jdist.core.outcome import ErrorInfo
from jdist.core.topology import Topology
from jdist.wire.values.objects import encode


def a_run(number: int = 1) -> CellRun:
    return CellRun(number, (0, 1), Topology((2,)), lambda _: None)


def done(rank: int, value: object = None, error: ErrorInfo | None = None) -> RankDone:
    if error is not None:
        return RankDone(1, rank, "error", 0.1, error=error)
    payload, buffers = encode(value)
    wire = PayloadWire(payload.head, payload.sizes, payload.nbytes, payload.summary, tuple(bytes(b) for b in buffers))
    return RankDone(1, rank, "value", 0.1, payload=None if value is None else wire)


def ended() -> RunEnded:
    return RunEnded(1, "", 0.1, -1)


def the_cell(history: History) -> CellStep:
    (step,) = history.steps
    assert isinstance(step, CellStep)
    return step


def test_a_cell_is_done_when_its_run_is() -> None:
    history, run = History(), a_run()
    history.add_cell(run, "x", 2, is_setup=True)
    history.entitle(1, "In [4]: %%dist")
    step = the_cell(history)
    assert (step.state, step.is_setup, step.ranks) == ("running", True, (0, 1))
    for message in (done(0), done(1), ended()):
        run.feed(message)
    assert (the_cell(history).state, step.title) == ("done", "In [4]: %%dist")


def test_a_cell_that_failed_says_why() -> None:
    history, run = History(), a_run()
    history.add_cell(run, "x", 2)
    for message in (done(0), done(1, error=ErrorInfo("ValueError", "no\nmore")), ended()):
        run.feed(message)
    assert the_cell(history).state == "failed"
    assert the_cell(history).why == "CellError: rank 1 (node 0) failed: ValueError: no"


def test_a_cell_whose_cluster_went_has_failed() -> None:
    history, run = History(), a_run()
    history.add_cell(run, "x", 2)
    run.feed(Stopped("the cluster was stopped"))
    assert "the cluster was stopped" in the_cell(history).why


def test_a_run_that_is_over_is_let_go() -> None:
    history, run = History(), a_run()
    history.add_cell(run, "x", 2)
    for message in (done(0, 1), done(1, 1), ended()):
        run.feed(message)
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None


def test_only_the_newest_steps_are_kept() -> None:
    history = History(most=2)
    for n in range(5):
        history.add(BroadcastStep("x", n))
    assert history.steps == (BroadcastStep("x", 3), BroadcastStep("x", 4))
    assert history.forgotten == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (None, "None"),
        (True, "True"),
        ("a'b", '"a\'b"'),
        ({"lr": [1, (2.5, None)]}, "{'lr': [1, (2.5, None)]}"),
        (torch.tensor([1.0, 0.1]), "torch.tensor([1.0, 0.10000000149011612], dtype=torch.float32)"),
        (torch.tensor(3), "torch.tensor(3, dtype=torch.int64)"),
        (torch.tensor([True]), "torch.tensor([True], dtype=torch.bool)"),
        (torch.arange(65), ""),
        (torch.tensor([float("nan")]), ""),
        (torch.ones(2, requires_grad=True), ""),
        (torch.nn.Parameter(torch.ones(1)), ""),
        (torch.ones(2).to_sparse(), ""),
        (float("inf"), ""),
        (np.float64(1.0), ""),
        (np.ones(2), ""),
        (torch.Size([1, 2]), ""),
        ("x" * 600, ""),
        pytest.param(object(), "", id="object"),
        (print, ""),
    ],
    ids=repr,
)
def test_a_value_as_python(value: object, text: str) -> None:
    assert as_python(value) == text
    if text.startswith("torch"):
        assert torch.equal(eval(text), value)  # type: ignore[arg-type]


def test_a_value_whose_repr_fails_is_none_that_can_be_written() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("on purpose")

    assert as_python(Odd()) == ""


def test_no_repr_of_the_users_own_is_asked_for() -> None:
    class Ends:
        shape = property(lambda _: sys.exit("on purpose"))

        def __repr__(self) -> str:
            raise SystemExit("on purpose")

    loop: list[object] = []
    loop.append(loop)
    for value in (Ends(), [1, Ends()], {"key": (Ends(),)}, {1: list(range(1000))}, [Ends()] * 100_000, loop, 10**9000):
        assert as_python(value) == ""
    assert kind_of(Ends()) == "Ends"
    assert as_python([set(), {1}, b"x", -2j]) == "[set(), {1}, b'x', (-0-2j)]"
