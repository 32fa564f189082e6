"""The rules of a batch job: what ends its run, what is held, and until when."""

from __future__ import annotations

from typing import Any

import pytest

from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused, RanksResumed
from jdist.core.messages.observation import StackFrame, Verdict, VerdictChanged
from jdist.core.messages.runs import RankDone, RunEnded
from jdist.notebook.batch.rules import CERTAIN, GATHER, GRACE, End, Held, HoldEnd, Report, Rules

HOLD = 100.0
CERTAINLY = Verdict(1, "missing", (1,), (0,), "rank 1 has not entered")
SLOW = Verdict(1, "slow", (1,), (0,), "rank 1 is busy")
LOST = Verdict(1, "lost", (1,), (), "rank 1 is lost")


def paused(rank: int, reason: Any = "breakpoint", error: str = "") -> RankPaused:
    return RankPaused(1, rank, reason, StackFrame("f", "a.py", 3), 0, error=error)


def told(rules: Rules, *messages: Message, now: float = 0.0) -> Rules:
    for message in messages:
        rules.feed(message, now)
    return rules


def plays(rules: Rules, until: float = 1000.0) -> list[tuple[float, object]]:
    """What is done, and when, if nothing more comes."""
    found: list[tuple[float, object]] = []
    now = 0.0
    while True:
        found += [(now, action) for action in rules.due(now)]
        deadline = rules.next_deadline()
        if deadline is None or deadline > until:
            return found
        assert deadline > now, "it would be asked for ever"
        now = deadline


@pytest.mark.parametrize(
    ("holds", "messages", "done"),
    [
        (False, [], []),
        (False, [RankDone(1, 0, "value")], []),
        (False, [RankDone(1, 0, "error")], [(GRACE, End("failure"))]),
        (True, [RankDone(1, 0, "lost")], [(GRACE, End("failure"))]),
        (False, [RankDone(1, 0, "error"), RunEnded(1, "", 1.0)], []),
        (False, [VerdictChanged(1, SLOW)], []),
        (False, [VerdictChanged(1, CERTAINLY)], [(CERTAIN, End("hang"))]),
        (False, [VerdictChanged(1, CERTAINLY), VerdictChanged(1, None)], []),
        (False, [VerdictChanged(1, CERTAINLY), VerdictChanged(1, SLOW)], []),
        (True, [VerdictChanged(1, CERTAINLY)], [(0.0, Held(CERTAINLY)), (HOLD, End("time"))]),
        (True, [VerdictChanged(1, CERTAINLY), VerdictChanged(1, None)], []),
        (True, [VerdictChanged(1, LOST)], []),
        (False, [paused(0), paused(1)], [(GATHER, Report((paused(0), paused(1)))), (HOLD, End("time"))]),
        (False, [paused(0), RanksResumed(1, (0,))], []),
        (False, [paused(0), RankDone(1, 0, "value")], []),
        (False, [paused(0), RunEnded(1, "interrupted", 1.0)], []),
        (
            True,
            [paused(1, "failure", "ValueError: bad"), paused(0)],
            [
                (GATHER, Report((paused(0), paused(1, "failure", "ValueError: bad")))),
                (HOLD, HoldEnd((1,))),
                (HOLD + GRACE, End("failure")),
            ],
        ),
    ],
)
def test_what_is_done_if_nothing_more_comes(holds: bool, messages: list[Message], done: list[Any]) -> None:
    assert plays(told(Rules(holds=holds, hold_for=HOLD), *messages)) == done


def test_while_ranks_are_paused_a_failure_elsewhere_does_not_end_them() -> None:
    rules = told(Rules(holds=False, hold_for=HOLD), RankDone(1, 2, "error"), paused(0))
    assert plays(rules, GRACE * 2) == [(GATHER, Report((paused(0),)))]
    told(rules, RanksResumed(1, (0,)), now=50.0)
    assert rules.due(50.0) == [End("failure")]


def test_a_hang_that_comes_and_goes_counts_from_its_last_beginning() -> None:
    rules = Rules(holds=False, hold_for=HOLD)
    told(rules, VerdictChanged(1, CERTAINLY), VerdictChanged(1, None))
    told(rules, VerdictChanged(1, CERTAINLY), now=CERTAIN - 1)
    told(rules, VerdictChanged(1, CERTAINLY), now=CERTAIN + 1)  # in other words
    assert rules.due(CERTAIN) == []
    assert rules.next_deadline() == 2 * CERTAIN - 1


def test_the_time_of_a_hold_begins_anew_once_all_have_gone_on() -> None:
    rules = told(Rules(holds=True, hold_for=HOLD), paused(0), now=0.0)
    rules.due(GATHER)
    told(rules, paused(1), now=20.0)
    rules.due(20.0 + GATHER)
    assert rules.next_deadline() == HOLD
    told(rules, RanksResumed(1, (0, 1)), now=30.0)
    assert rules.next_deadline() is None
    told(rules, paused(0), now=40.0)
    rules.due(40.0 + GATHER)
    assert rules.next_deadline() == 40.0 + HOLD


def test_a_rank_that_pauses_after_the_time_is_over_is_not_held_again() -> None:
    rules = told(Rules(holds=True, hold_for=HOLD), paused(0, "failure", "a"))
    assert (HOLD, HoldEnd((0,))) in plays(rules, HOLD)
    told(rules, RanksResumed(1, (0,)), RankDone(1, 0, "error"), paused(1, "failure", "b"), now=HOLD + 1)
    assert rules.due(HOLD + 1) == [HoldEnd((1,))]
    told(rules, RanksResumed(1, (1,)), RankDone(1, 1, "error"), paused(2), now=HOLD + 2)
    assert rules.due(HOLD + 2) == [End("time")]


def test_the_first_failure_that_was_held_is_remembered() -> None:
    rules = told(Rules(holds=True, hold_for=HOLD), paused(0), paused(2, "failure", "a"), paused(1, "failure", "b"))
    told(rules, RanksResumed(1, (0, 1, 2)))
    assert rules.failure == paused(2, "failure", "a")
    assert not rules.paused
