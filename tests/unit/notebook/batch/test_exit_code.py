"""Exit codes: what a shell is told of a run."""

from __future__ import annotations

from typing import Any

import pytest

from jdist.agent.processes.exits import explain_exit
from jdist.client.run import CellRun
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.observation import StackFrame
from jdist.core.messages.runs import RankDone, RunEnded
from jdist.core.messages.status import Stopped
from jdist.core.outcome import ErrorInfo
from jdist.core.topology import Topology
from jdist.notebook.batch.rules import exit_code, held_failure
from jdist.worker.process import ScriptExit


def ended(*parts: tuple[str, ErrorInfo | None], first: int = -1) -> CellRun:
    run = CellRun(1, tuple(range(len(parts))), Topology((len(parts),), ("h",)), lambda _: None)
    for rank, (kind, error) in enumerate(parts):
        run.feed(RankDone(1, rank, kind, error=error))
    run.feed(RunEnded(1, "", 1.0, first))
    return run


OK: tuple[str, ErrorInfo | None] = ("value", None)
FREED = ("interrupted", ErrorInfo("KeyboardInterrupt", ""))


def failed(code: int | None = None, *, is_echo: bool = False) -> tuple[str, ErrorInfo]:
    return "error", ErrorInfo("E", "exited with 9", is_echo=is_echo, exit_code=code)


def lost(status: int | None) -> tuple[str, ErrorInfo]:
    return "lost", ErrorInfo("RankLost", explain_exit(status))


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (ended(OK, OK), 0),
        (ended(OK, failed()), 1),
        (ended(failed(3), FREED), 3),
        (ended(FREED, failed(3)), 3),
        (ended(failed(0), OK), 1),
        (ended(failed(3), failed(4), first=1), 4),
        (ended(failed(is_echo=True), failed(4)), 4),
        (ended(OK, FREED), 1),
        (ended(("timeout", None)), 1),
        (ended(OK, lost(7 << 8)), 7),
        (ended(OK, lost(0)), 1),
        (ended(OK, lost(9)), 137),
        (ended(OK, lost(11)), 139),
        (ended(OK, lost(None)), 1),
    ],
)
def test_the_rank_that_failed_first_decides(run: CellRun, code: int) -> None:
    assert exit_code(run) == code


@pytest.mark.parametrize(("error", "code"), [("ValueError: exited with 5", 1), ("ScriptExit: a.py exited with 5", 5)])
def test_a_failure_that_was_held_decides_however_the_rank_ended_later(error: str, code: int) -> None:
    held = RankPaused(1, 1, "failure", StackFrame("f", "a.py", 3), 0, error=error)
    run = ended(FREED, FREED)
    assert exit_code(run, held_failure(run, held)) == code


def test_a_lost_rank_decides_whatever_was_held() -> None:
    """Its death closes connections, so the others fail, too, and are held until the run ends."""
    held = RankPaused(1, 0, "failure", StackFrame("f", "a.py", 3), 0, error="RuntimeError: connection closed by peer")
    run = ended(FREED, lost(3 << 8))
    assert exit_code(run, held_failure(run, held)) == 3
    assert held_failure(run, held) is None


def test_a_held_failure_decides_when_its_cluster_is_stopped() -> None:
    held = RankPaused(1, 0, "failure", StackFrame("f", "a.py", 3), 0, error="ScriptExit: a.py exited with 5")
    run = CellRun(1, (0, 1), Topology((2,), ("h",)), lambda _: None)
    run.feed(Stopped("stopped by a client"))
    assert exit_code(run, held_failure(run, held)) == 5


@pytest.mark.parametrize(("given", "code"), [(3, 3), (256 + 3, 3), (-1, 255), ("bad", 1), (2.5, 1), (True, 1)])
def test_a_scripts_exit_is_as_the_interpreters(given: Any, code: int) -> None:
    assert ScriptExit("a.py", given).code == code
