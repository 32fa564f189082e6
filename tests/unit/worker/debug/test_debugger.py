"""Requests to pause a rank, in the order in which its control thread and its main thread may come to handle them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from jdist.core.messages.debug import ResumeRanks
from jdist.worker.debug.debugger import SIGNAL, Debugger, Paused
from jdist.worker.observe.call_log import CallLog

RUN = 5


class AwaitingCell:
    """Stands for the handler of SIGINT while the cell awaits something. ``orders`` arrive when it is next asked."""

    def __init__(self) -> None:
        self.held: set[Any] = set()
        self.orders: list[Any] = []

    def is_user_code(self, _: FrameType) -> bool:
        while self.orders:
            self.orders.pop()()
        return False

    def is_held(self, _: FrameType) -> bool:
        return False


@pytest.fixture
def cell() -> AwaitingCell:
    return AwaitingCell()


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, cell: AwaitingCell) -> Iterator[Debugger]:
    before = signal.getsignal(SIGNAL)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(call_later=lambda *_: None))
    kernel: Any = SimpleNamespace(shell=SimpleNamespace(compile=SimpleNamespace(_filename_map={})))
    cells: Any = SimpleNamespace(run_of=int, spans=SimpleNamespace(current=RUN, is_due=lambda run: run == RUN))
    observer: Any = SimpleNamespace(upcoming=None)
    sigint: Any = cell
    yield Debugger(kernel, 0, cells, sigint, CallLog(), observer)
    signal.signal(SIGNAL, before)
    assert sys.gettrace() is None


def test_a_request_that_is_withdrawn_while_its_signal_is_handled_leaves_the_next_one_alone(
    rank: Debugger, cell: AwaitingCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[str] = []
    monkeypatch.setattr(rank, "pause", lambda _frame, reason, **_: pauses.append(reason))
    cell.orders.append(lambda: rank.resume(ResumeRanks(RUN, ())))
    rank.request(RUN)
    assert not pauses, "it was withdrawn"
    rank.request(RUN)
    assert pauses == ["request"]


def test_names_that_are_pushed_after_a_resume_belong_to_the_session(rank: Debugger) -> None:
    """The thread has not taken notice of it yet; soon nobody reads the frame's names any more."""
    stack: Any = SimpleNamespace(names=None)
    rank.paused = Paused(RUN, "request", stack, "", 0, "", 0)
    rank.resume(ResumeRanks(RUN, ()))
    session: dict[str, Any] = {}
    rank.bind({"go": True}, session)
    assert session == {"go": True}
    assert rank.read_names(session) is session
