"""Where ranks are, in words: paused ranks by place, the others by what they do."""

from __future__ import annotations

import pytest

from jdist.client.debug import Places, describe_unpaused
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.observation import Activity, Call, GroupProgress, Observation, PauseReason, StackFrame
from jdist.core.messages.status import RankFacts
from jdist.core.outcome import OutcomeKind

AT = StackFrame("train_step", "", 8, "loss.backward()", 12)
SCRIPT = StackFrame("main", "/home/u/train.py", 80, "", 0)
CALL = Call("all_reduce", "0", 18, ((16,),), ("float32",))


def paused(rank: int, at: StackFrame = AT, reason: PauseReason = "request", **more: object) -> RankPaused:
    return RankPaused(12, rank, reason, at, 0, **more)  # type: ignore[arg-type]


def test_ranks_at_the_same_place_are_listed_together() -> None:
    places = Places({0: paused(0), 1: paused(1, SCRIPT), 2: paused(2), 3: paused(3)}, {4: "idle"})
    assert str(places).splitlines() == [
        "[0,2-3] train_step, line 8: loss.backward()",
        "[1]     main, train.py line 80",
        "[4]     idle",
    ]


def test_the_reason_is_named_where_the_line_does_not_say_it() -> None:
    places = Places(
        {
            0: paused(0, reason="next_call", about_to=CALL),
            1: paused(1, reason="failure", error="ValueError: bad"),
            2: paused(2, thread="autograd"),
            3: paused(3, reason="next_call", about_to=Call("send", "0", 0, ((4,),), ("int64",), peer=1)),
            4: paused(4, reason="step", returns="tensor [] float32"),
        },
        {},
    )
    assert [line[4:] for line in str(places).splitlines()] == [
        "train_step, line 8: loss.backward() · about to call all_reduce #18 [16] float32",
        "train_step, line 8: loss.backward() · ValueError: bad",
        "train_step, line 8: loss.backward() (in thread autograd)",
        "train_step, line 8: loss.backward() · about to call send [4] int64 to rank 1",
        "train_step, line 8: loss.backward() · about to return tensor [] float32",
    ]


def test_many_places_are_counted() -> None:
    places = Places({rank: paused(rank, StackFrame("f", "", rank + 1)) for rank in range(64)}, {})
    lines = str(places).splitlines()
    assert len(lines) == 17
    assert lines[-1] == "… 48 more ranks at 48 other places"


def row(state: str = "running", run: int = 12, *, is_pausing: bool = False) -> RankFacts:
    return RankFacts(4, 0, "a", 1, state, run, "", fresh=False, is_pausing=is_pausing)


IN_CALL = Observation(
    "cpu", Activity("collective", "all_reduce", 5, calls=(CALL,)), 0, (GroupProgress.of("0", (0,), 18, 17),)
)
IN_PYTHON = Observation("cpu", Activity("python", "load", 3), 0)


@pytest.mark.parametrize(
    ("facts", "seen", "words"),
    [
        (row(is_pausing=True), IN_CALL, "in all_reduce #18 of ranks 0 at line 5; pause pending"),
        (row(), IN_PYTHON, "running load at line 3"),
        (row(), None, "is in run 12"),
        (row(run=0), None, "is no longer in run 12"),
        (row("gone"), None, "is gone"),
    ],
)
def test_what_a_rank_does_that_is_not_paused(facts: RankFacts, seen: Observation | None, words: str) -> None:
    assert describe_unpaused(facts, seen, 12) == words


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ("value", "finished run 12"),
        ("error", "failed in run 12"),
        ("timeout", "timed out in run 12"),
        ("interrupted", "was interrupted in run 12"),
        ("lost", "was lost in run 12"),
    ],
)
def test_how_a_rank_that_was_paused_has_ended(ended: OutcomeKind, words: str) -> None:
    assert describe_unpaused(row(run=0), None, 12, ended) == words
