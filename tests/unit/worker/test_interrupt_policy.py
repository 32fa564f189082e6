"""When a busy rank is signalled: until its interrupt has been raised, and not while a handler of the cell runs."""

import time
from dataclasses import dataclass, field

import pytest

from jdist.worker import escalation
from jdist.worker.cells.signals import Moment
from jdist.worker.escalation import InterruptPolicy

GRACE, PATIENCE = 5.0, 30.0


@dataclass
class Sigint:
    """What the policy sees of the handler of SIGINT."""

    raised_at: Moment | None = None
    is_handled: bool = False
    is_insistent: bool = False

    def forget(self, before: float) -> None:
        self.is_insistent = False
        if self.raised_at is None or self.raised_at.monotonic < before:
            self.raised_at = None


@dataclass
class Play:
    """A cell that is interrupted, at a clock that the test moves."""

    clock: pytest.MonkeyPatch
    now: float = 100.0
    newest_call: int = 0
    reports: list[tuple[bool, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock.setattr(escalation.time, "monotonic", lambda: self.now)
        self.sigint = Sigint()
        self.policy = InterruptPolicy(
            self.sigint,  # type: ignore[arg-type]
            lambda: self.newest_call,
            GRACE,
            PATIENCE,
            lambda *report: self.reports.append(report),
        )

    def is_raised(self, *, is_handled: bool) -> None:
        self.sigint.raised_at, self.sigint.is_handled = Moment(time.time_ns(), self.now), is_handled

    def may_signal_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.policy.may_signal()


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_the_signal_is_repeated_until_the_interrupt_is_raised(play: Play) -> None:
    assert [play.may_signal_after(60.0) for _ in range(3)] == [True] * 3
    play.is_raised(is_handled=True)
    assert not play.may_signal_after(0.1)
    assert play.policy.deadline is None


def test_a_handler_is_left_alone_for_as_long_as_it_may_run_and_reported_once(play: Play) -> None:
    play.is_raised(is_handled=True)
    assert not any(play.may_signal_after(1.0) for _ in range(int(PATIENCE)))
    assert play.reports == [(True, PATIENCE)]
    assert not play.may_signal_after(1.0)  # its time is up; the next step signals
    assert play.may_signal_after(0.0)
    assert play.sigint.is_insistent
    assert play.policy.deadline == play.now + GRACE


def test_an_interrupt_that_was_swallowed_is_raised_again_after_the_grace(play: Play) -> None:
    play.is_raised(is_handled=False)
    assert not any(play.may_signal_after(1.0) for _ in range(int(GRACE) + 1))
    assert play.reports == [(False, GRACE)]
    assert play.may_signal_after(0.0)


def test_code_that_swallows_the_interrupt_and_goes_on_with_collectives_is_interrupted_at_once(play: Play) -> None:
    play.is_raised(is_handled=False)
    play.newest_call = time.time_ns() + 1
    assert play.may_signal_after(0.1)
    assert play.sigint.is_insistent


def test_a_handler_may_call_collectives(play: Play) -> None:
    play.is_raised(is_handled=True)
    play.newest_call = time.time_ns() + 1
    assert not play.may_signal_after(0.1)


def test_a_second_interrupt_ends_the_handler(play: Play) -> None:
    play.is_raised(is_handled=True)
    play.policy.insist()
    assert play.may_signal_after(0.1)
    assert play.sigint.is_insistent


def test_an_interrupt_that_was_lost_in_a_destructor_is_raised_again(play: Play) -> None:
    play.is_raised(is_handled=True)
    assert not play.may_signal_after(0.1)
    play.sigint.raised_at = None
    assert play.may_signal_after(0.1)


def test_what_an_earlier_interrupt_left_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Play(monkeypatch)
    first.is_raised(is_handled=True)
    first.policy.insist()
    assert first.policy.may_signal()
    InterruptPolicy(first.sigint, lambda: 0, GRACE, PATIENCE, lambda *_: None)  # type: ignore[arg-type]
    assert (first.sigint.raised_at, first.sigint.is_insistent) == (None, False)


def test_an_interrupt_of_the_agents_signal_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch)
    play.is_raised(is_handled=True)
    policy = InterruptPolicy(play.sigint, lambda: 0, GRACE, PATIENCE, lambda *_: None, since=play.now - 0.5)  # type: ignore[arg-type]
    assert not policy.may_signal(), "the cell's handler is left alone"
