"""Points at which a running cell can be saved: every rank saves at the same call, whatever comes when."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jdist
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.saving import PartSaved, PrepareSave, SaveAt, SaveOptions, SavePoint, SaveStarted
from jdist.worker.session.points import SavePoints

OPTIONS = SaveOptions("/d")
SOON = 10.0


class Rank:
    """A rank in run 5."""

    def __init__(self, worker: int = 0) -> None:
        self.run = 5
        self.sent: list[Message] = []
        self.saved: list[int] = []
        self.made = 0
        self.error = ""
        self.points = SavePoints(worker, lambda: self.run, self.sent.append, self._save)

    def _save(self, at: SaveAt) -> None:
        if self.error:
            raise UsageError(self.error)
        self.saved.append(at.call)

    def call(self, count: int = 1) -> None:
        for _ in range(count):
            self.points.call()
            self.made += 1

    def prepare(self) -> int:
        self.points.prepare(PrepareSave("s", 5, (0,)))
        answer = self.sent[-1]
        assert isinstance(answer, SavePoint)
        return answer.calls

    def bind(self, call: int) -> None:
        self.points.bind(SaveAt("s", 5, (0,), call, OPTIONS))


def test_a_rank_saves_at_the_call_that_it_is_told() -> None:
    rank = Rank()
    rank.call(3)
    assert rank.prepare() == 3
    rank.bind(6)
    rank.call(2)
    assert not rank.saved
    rank.call(5)
    assert rank.saved == [6]


def test_a_rank_that_is_asked_waits_at_its_next_call() -> None:
    rank = Rank()
    rank.call(2)
    assert rank.prepare() == 2
    thread = threading.Thread(target=rank.call)
    thread.start()
    thread.join(0.05)
    assert rank.made == 2
    rank.bind(3)
    thread.join(SOON)
    assert (rank.made, rank.saved) == (3, [3])


def test_a_rank_that_is_not_to_save_goes_on() -> None:
    rank = Rank()
    rank.call(2)
    rank.prepare()
    rank.bind(0)
    rank.call(4)
    assert (rank.made, rank.saved) == (6, [])


@pytest.mark.parametrize("other", [0, 4, 6])
def test_calls_of_another_run_do_not_count(other: int) -> None:
    rank = Rank()
    rank.run = other
    rank.call(7)
    assert rank.prepare() == 0
    rank.call()  # is not held
    rank.bind(8)
    rank.call(3)
    assert not rank.saved


def test_what_a_run_was_to_save_is_forgotten_with_it() -> None:
    rank = Rank()
    rank.call(2)
    rank.prepare()
    rank.bind(3)
    rank.run = 6
    rank.call(5)
    assert not rank.saved


def test_a_save_that_cannot_begin_is_reported_and_the_cell_goes_on() -> None:
    rank = Rank()
    rank.error = "the folder is gone"
    rank.call()
    rank.prepare()
    rank.bind(2)
    rank.call()
    assert rank.sent[-2:] == [SaveStarted(0, "s", 0), PartSaved(0, "s", "the folder is gone")]


def test_a_rank_that_hears_of_its_call_too_late_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jdist.worker.session.points._LONGEST_HOLD", 0.0)
    rank = Rank()
    rank.call(2)
    rank.prepare()
    rank.call(3)
    rank.bind(4)
    rank.call()
    assert not rank.saved
    *_, started, part = rank.sent
    assert started == SaveStarted(0, "s", 0)
    assert isinstance(part, PartSaved)
    assert "call 4" in part.error


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20), st.permutations([0, 1, 2]))
def test_all_ranks_save_at_one_call(steps: list[tuple[int, bool]], order: list[int]) -> None:
    """They come to their calls at different speeds while the controller asks them."""
    ranks = [Rank(n) for n in range(3)]
    answers: dict[int, int] = {}
    for n, is_asked in [*steps, *((n, True) for n in order)]:
        if is_asked and n not in answers:
            answers[n] = ranks[n].prepare()
        elif not answers.get(n):  # else it is held
            ranks[n].call()
    call = max(answers.values()) + 1 if min(answers.values()) else 0
    for rank in ranks:
        rank.bind(call)
    for n in order:
        ranks[n].call(10 + call)
    assert {tuple(rank.saved) for rank in ranks} == ({(call,)} if call else {()})


def test_an_interrupt_at_any_moment_leaves_the_lock_free() -> None:
    """The control thread would wait for it, and with it everything that is asked of the rank."""
    rank, interrupts = Rank(), 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        while interrupts < 50:
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_VIRTUAL, 2e-4)
                while True:
                    rank.points.call()
            interrupts += 1
    finally:
        signal.signal(signal.SIGVTALRM, before)
    thread = threading.Thread(target=rank.prepare, daemon=True)
    thread.start()
    thread.join(SOON)
    assert isinstance(rank.sent[-1], SavePoint)


def test_outside_of_a_rank_a_call_does_nothing() -> None:
    jdist.save_if_due()
