"""What a job writes while it runs: its log has each line once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jdist.core.errors import Remedy
from jdist.core.messages.observation import Verdict, VerdictChanged
from jdist.core.messages.runs import RankDone
from jdist.core.messages.status import Notice
from jdist.core.outcome import ErrorInfo, Outcome
from jdist.core.topology import Topology
from jdist.notebook.batch.display import BatchDisplay

INTERRUPT = Remedy("interrupt", "stop run 1 on ranks 0-1", run=1)
SLOW = Verdict(1, "slow", (1,), (0,), "rank 0 waits for rank 1, which is busy", ("waits (5.0 s)",), (INTERRUPT,))
LOST = Verdict(1, "lost", (1,), (), "rank 1 is lost: killed by signal 9")


@pytest.fixture
def display() -> BatchDisplay:
    unused: Any = None
    return BatchDisplay(unused, unused)


def test_a_verdict_that_goes_on_is_written_once(display: BatchDisplay, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in range(5, 65):
        display.handle(VerdictChanged(1, msgspec.structs.replace(SLOW, details=(f"waits ({seconds}.0 s)",))))
    assert capsys.readouterr().err.splitlines() == [
        "● run 1 waits: rank 0 waits for rank 1, which is busy",
        "  waits (5.0 s)",
    ]


def test_another_verdict_is_written_and_the_same_one_after_an_end(
    display: BatchDisplay, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = msgspec.structs.replace(SLOW, waiting=(0, 2), reason="ranks 0, 2 wait for rank 1, which is busy")
    for verdict in (SLOW, moved, None, moved):
        display.handle(VerdictChanged(1, verdict))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("●")]
    assert [line.removeprefix("● run 1 waits: ") for line in lines] == [
        SLOW.reason,
        moved.reason,
        "● the run is making progress again",
        moved.reason,
    ]


@pytest.mark.parametrize("verdict", [SLOW, LOST])
def test_the_summary_does_not_repeat_what_was_written(verdict: Verdict, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {0: Outcome(kind="interrupted", error=ErrorInfo("KeyboardInterrupt", "", source="a.py line 4: f()"))}
    run: Any = SimpleNamespace(
        number=1, ranks=(0, 1), seconds=2.0, outcomes=outcomes, first_failure=None, verdict=verdict
    )
    cluster: Any = SimpleNamespace(name="c1", topology=Topology((2,), ("a",)))
    display = BatchDisplay(cluster, run)
    display.handle(VerdictChanged(1, verdict))
    capsys.readouterr()
    display.finish()
    assert capsys.readouterr().err.splitlines() == [
        "rank 0 (node 0, a) interrupted",
        "  a.py line 4: f()",
        "run 1 · 2 ranks · 2.0 s · 1 interrupted",
    ]
    outcomes[0] = Outcome(kind="lost")  # with its cluster
    display.finish("stopped by a client")
    assert capsys.readouterr().err == "run 1 did not finish; cluster c1: stopped by a client\n"


@pytest.mark.parametrize("holds", [True, False])
def test_what_becomes_of_ranks_after_a_failure_matters_only_where_a_user_can_attach(
    holds: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    unused: Any = None
    display = BatchDisplay(unused, unused, holds=holds)
    for message in (Notice("rank 1 is lost"), RankDone(1, 1, "lost"), Notice("rank 1 is fresh"), Notice("busy", 1)):
        display.handle(message)
    fresh = ["rank 1 is fresh"] * holds
    assert capsys.readouterr().err.splitlines() == ["rank 1 is lost", *fresh, "busy"]
