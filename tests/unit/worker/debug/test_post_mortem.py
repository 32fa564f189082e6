"""Failures of cells: which frames are kept and for how long, and that a held cell stops before it is reported."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jdist.core.messages.base import QueryFailed
from jdist.core.messages.debug import DebugFailure, RankFailure, ReadStack, Stack
from jdist.core.messages.runs import CellSpec, ExecuteCell
from jdist.worker.cells.user_code import forget_texts
from jdist.worker.debug.frames import CellFailure, PostMortem, UserCode

FAILS = """\
def loss_of(batch):
    scaled = batch * 10
    try:
        return int('no' + str(scaled))
    finally:
        closed = True

loss_of(7)
"""


@pytest.fixture(autouse=True)
def _main(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell puts a module of its own in the place of ``__main__``, which processes of later tests would import."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


class Rank:
    """A shell whose cells the post mortem sees begin and end."""

    def __init__(self) -> None:
        self.shell = InteractiveShell()  # type: ignore[no-untyped-call]
        self.held: list[CellFailure] = []
        self.shown: list[str] = []
        self.interrupts = self.is_inner = False
        self.shell.showtraceback = lambda *_, **__: self.shown.append("traceback")
        self.post_mortem = PostMortem(self.shell, UserCode(self.shell, lambda count: count), self.hold)

    def hold(self, failure: CellFailure) -> None:
        if self.is_inner:
            return
        assert not self.shown
        self.held.append(failure)
        self.is_inner = True
        self.run(9, "1 / 0", in_run=failure.run)  # a cell in the frame
        self.is_inner = False
        self.shown.clear()
        if self.interrupts:
            raise KeyboardInterrupt

    def run(self, number: int, code: str, in_run: int = 0, **options: Any) -> CellFailure | None:
        cell = ExecuteCell(number, (0,), CellSpec(code, **options), in_run)
        with contextlib.nullcontext() if cell.in_run else self.post_mortem.begin(cell):
            result = self.shell.run_cell(code)
        self.post_mortem.end(cell, result.error_in_exec)
        forget_texts()  # as at the end of each cell
        return self.post_mortem.failure


@pytest.fixture
def rank() -> Iterator[Rank]:
    rank = Rank()
    yield rank
    atexit.unregister(rank.shell.atexit_operations)
    rank.shell.atexit_operations()  # type: ignore[no-untyped-call]


def test_a_failure_is_kept_until_the_next_cell_of_the_user(rank: Rank) -> None:
    failure = rank.run(3, FAILS)
    assert failure is not None
    assert (failure.run, failure.error) == (3, "ValueError: invalid literal for int() with base 10: 'no70'")
    assert [(f.f_code.co_name, line) for f, line in failure.frames] == [("<module>", 8), ("loss_of", 4)]
    assert failure.frames[-1][0].f_locals["scaled"] == 70
    assert not rank.held
    for options in ({"in_failure": True}, {"is_internal": True}, {"is_internal": True, "is_setup": True}):
        assert rank.run(4, "1 / 0", **options) is failure
    assert rank.run(5, "1 +") is None  # none of its code ran
    assert rank.run(6, "1 / 0") is not None
    assert rank.run(7, "pass") is None


def test_cells_run_in_the_frame_that_is_chosen(rank: Rank) -> None:
    assert isinstance(rank.post_mortem.answer(DebugFailure()), QueryFailed)
    rank.run(3, "names = []")
    rank.run(4, FAILS)
    assert rank.post_mortem.answer(ReadStack()) == RankFailure(4), "no cell would run in a frame that it shows"
    found = rank.post_mortem.answer(DebugFailure(4))
    assert isinstance(found, Stack)
    assert [(f.function, f.line) for f in found.frames] == [("<cell>", 8), ("loss_of", 4)]
    assert (found.chosen, found.run, found.reason) == (1, 4, "failure")
    assert isinstance(rank.post_mortem.answer(DebugFailure(3)), QueryFailed)

    rank.run(5, "names.append((batch, scaled)); scaled += 1; other = 5", in_failure=True)
    rank.run(6, "names.append((batch, scaled, other))", in_failure=True)
    rank.run(7, "later = 1; 1 / 0", in_failure=True)
    moved = rank.post_mortem.answer(ReadStack(5))
    assert isinstance(moved, Stack)
    assert moved.chosen == 0
    rank.run(8, "names.append('scaled' in globals())", in_failure=True)
    rank.post_mortem.answer(ReadStack(-1))
    rank.run(9, "names.append(scaled)", in_failure=True)
    assert rank.shell.user_ns["names"] == [(7, 70), (7, 71, 5), False, 71]
    assert not {"scaled", "other", "later"} & rank.shell.user_ns.keys()
    assert isinstance(rank.post_mortem.answer(DebugFailure(ends=True)), Stack)
    assert isinstance(rank.post_mortem.answer(ReadStack()), QueryFailed)
    assert isinstance(rank.post_mortem.answer(DebugFailure()), QueryFailed)


_KEEPS = """\
import weakref
class Big: pass
def fails():
    global held
    big = Big()
    held = weakref.ref(big)
    1 / 0
fails()
"""


@pytest.mark.parametrize("inside", ["", "print(big)", "more = big", "f = lambda: big\nassert f()", "2 / 0"])
def test_the_end_of_debugging_frees_what_only_the_frames_held(rank: Rank, inside: str) -> None:
    del rank.shell.showtraceback  # IPython's own, which keeps the traceback for %tb and %debug
    rank.run(3, _KEEPS)
    held = rank.shell.user_ns["held"]
    if inside:
        rank.post_mortem.answer(DebugFailure())
        rank.run(4, inside, in_failure=True)
    assert held() is not None
    rank.post_mortem.answer(DebugFailure(ends=True))
    assert held() is None
    assert isinstance(rank.post_mortem.answer(DebugFailure(ends=True)), QueryFailed)
    assert rank.run(5, "1 / 0") is not None


def test_frames_of_libraries_above_the_cell_are_left_out_and_those_below_are_not(rank: Rank) -> None:
    failure = rank.run(1, "import json\njson.loads('{')")
    assert failure is not None
    names = [frame.f_code.co_name for frame, _ in failure.frames]
    assert names[0] == "<module>"
    assert "loads" in names
    assert len(names) > 2


def test_a_held_cell_stops_before_its_traceback_and_then_fails_as_it_would(rank: Rank) -> None:
    for rank.interrupts in (False, True):
        rank.held.clear()
        rank.shown.clear()
        failure = rank.run(3, FAILS, holds=True)
        assert [f.run for f in rank.held] == [3]
        assert rank.held[0].frames[-1][1] == 4
        assert rank.shown == ["traceback"]
        assert failure is not None


def test_a_script_that_exits_with_an_error_stops_where_it_exits(rank: Rank, tmp_path: Path) -> None:
    script = tmp_path / "exits.py"
    script.write_text("import sys\ndef main():\n    code = 3\n    sys.exit(code)\nmain()\n")
    rank.run(3, f"from jdist.worker.process import run_script\nrun_script({str(script)!r}, [], {{}})", holds=True)
    (failure,) = rank.held
    assert failure.error == f"ScriptExit: {script} exited with 3"
    assert (failure.stack.at.function, failure.stack.at.line) == ("main", 4)
    assert failure.stack.frame.f_locals["code"] == 3


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "raise KeyboardInterrupt", "1 +", "pass"])
def test_what_is_no_failure_is_not_held(rank: Rank, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    rank.run(3, code, holds=True)
    assert not rank.held
