"""A cluster's debugging methods: they return once the ranks have paused, are done, or are blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment
from jdist.client.debug import Debugging
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message, QueryFailed
from jdist.core.messages.debug import DebugFailure, Pause, RankFailure, RankPaused, ReadStack, Resume, Stack
from jdist.core.messages.observation import Activity, Call, GroupProgress, Observation, Observe, PauseReason, StackFrame
from jdist.core.messages.status import ClusterFacts, RankFacts, StatusReport, StatusRequest

FACTS = ClusterFacts("c", "ready", 1, "gloo", 1, (2,), ("a",), 2)
AT = StackFrame("train_step", "", 8, "loss.backward()", 12)
STACK = Stack((AT,), 0, 12, "request")
CALL = Call("all_reduce", "0", 17)
WAITS = Observation(
    "cpu",
    Activity("collective", "all_reduce", 5, "", 3.0, calls=(CALL,)),
    0,
    (GroupProgress.of("0", (0, 1), 17, 16, "world"),),
)


def row(rank: int, *, is_paused: bool = False, run: int = 12, reason: PauseReason = "request") -> RankFacts:
    paused = RankPaused(12, rank, reason, AT, 0) if is_paused else None
    return RankFacts(rank, 0, "a", 1, "running", run, "", fresh=False, paused=paused, is_pausing=not is_paused)


class Link:
    """A controller that reports the given rows one after the other, the last ones again and again."""

    def __init__(self, reports: Iterable[tuple[RankFacts, ...]]) -> None:
        self.facts = FACTS
        self.reports = list(reports)
        self.sent: list[Message] = []
        self.answers: dict[int, Message] = {}
        self.seen: dict[int, Observation] = {}

    async def request(self, message: Message, expected: type, timeout: float = 0.0) -> Any:
        if not isinstance(message, StatusRequest):
            self.sent.append(message)
            return None
        rows = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        return StatusReport("", FACTS, rows, ())

    async def query(self, ranks: tuple[int, ...], op: Any, timeout: float) -> dict[int, Message]:
        self.sent.append(op)
        return {rank: self.answers.get(rank, QueryFailed("it is not paused")) for rank in ranks}

    async def query_within(self, ranks: tuple[int, ...], op: Any, expected: type, seconds: float) -> dict[int, Message]:
        answers = self.seen if isinstance(op, Observe) else self.answers
        return {rank: answers[rank] for rank in ranks if isinstance(answers.get(rank), expected)}


def play(link: Any, scene: Callable[[Debugging], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        attachment = Attachment()
        attachment.current = link
        async with asyncio.timeout(10):
            return await scene(Debugging(attachment, ActiveRuns(attachment)))

    return asyncio.run(main())


def test_a_pause_is_over_once_each_rank_has_paused() -> None:
    link = Link([(row(0), row(1)), (row(0, is_paused=True), row(1)), (row(0, is_paused=True), row(1, is_paused=True))])
    link.seen = {1: Observation("cpu", Activity("python", "load", 3), 0)}
    places = play(link, lambda cluster: cluster.pause())
    assert sorted(places) == [0, 1]
    assert str(places) == "[0-1] train_step, line 8: loss.backward()"
    (asked,) = link.sent
    assert isinstance(asked, Pause)
    assert (asked.ranks, asked.run) == ((), 0)


def test_a_rank_that_waits_in_a_collective_is_not_waited_for() -> None:
    link = Link([(row(0), row(1)), (row(0, is_paused=True), row(1))])
    link.seen = {1: WAITS}
    places = play(link, lambda cluster: cluster.pause("0-1"))
    assert str(places).splitlines() == [
        "[0] train_step, line 8: loss.backward()",
        "[1] in all_reduce #17 of world at line 5; pause pending",
    ]


def test_after_a_time_the_others_are_listed_by_what_they_do() -> None:
    link = Link([(row(0, is_paused=True), row(1, is_paused=True)), (row(0), row(1, is_paused=True, reason="step"))])
    link.seen = {0: Observation("cpu", Activity("python", "load", 3), 0)}
    places = play(link, lambda cluster: cluster.resume("until", 0, line=9, timeout=0.1))
    (asked,) = link.sent
    assert isinstance(asked, Resume)
    assert (asked.how, asked.ranks, asked.line) == ("until", (0,), 9)
    assert (dict(places), places.others) == ({}, {0: "running load at line 3; pause pending"})


def test_a_rank_whose_part_is_over_is_not_waited_for() -> None:
    link = Link([(row(0, is_paused=True), row(1, is_paused=True)), (row(0, run=0), row(1, run=13))])
    places = play(link, lambda cluster: cluster.resume())
    assert places.others == {0: "is no longer in run 12", 1: "is in run 13; pause pending"}


def test_stacks_are_those_of_the_paused_ranks() -> None:
    link = Link([(row(0, is_paused=True), row(1))])
    link.answers, link.seen = {0: STACK, 1: STACK}, {1: WAITS}
    stacks = play(link, lambda cluster: cluster.where())
    assert (dict(stacks), link.sent) == ({0: STACK}, [ReadStack()])
    assert stacks.others == {1: "in all_reduce #17 of world at line 5; pause pending"}
    assert dict(play(link, lambda cluster: cluster.up(2, 0))) == {0: STACK}
    assert link.sent[-1] == ReadStack(2)
    play(link, lambda cluster: cluster.down(ranks=[0]))
    assert link.sent[-1] == ReadStack(-1)


async def refusal(debugging: Debugging) -> str:
    with pytest.raises(UsageError) as refused:
        await debugging.where()
    return str(refused.value)


def test_where_no_rank_is_paused_or_has_failed_the_error_says_so() -> None:
    link = Link([(row(0, run=0), row(1, run=0))])
    quiet = Link([tuple(RankFacts(r, 0, "a", 1, "idle", 0, "", fresh=False) for r in (0, 1))])
    some = Link([(row(0, is_paused=True), RankFacts(1, 0, "a", 1, "idle", 0, "", fresh=False))])
    assert play(some, lambda c: c.where(1)).others == {1: "idle"}
    for scene in (lambda c: c.resume("step", 1), lambda c: c.up(1, 1)):
        with pytest.raises(UsageError, match="rank 1 is not paused"):
            play(some, scene)
    for scene in (lambda c: c.resume(), lambda c: c.where(), lambda c: c.up()):
        with pytest.raises(UsageError, match="no rank is paused"):
            play(quiet, scene)
    assert play(quiet, refusal) == "no rank is paused"
    quiet.answers = {1: RankFailure(12)}
    assert play(quiet, refusal) == "no rank is paused; debug to inspect where the last cell failed"
    assert str(play(quiet, lambda c: c.pause())) == ""
    with pytest.raises(UsageError, match="no rank failed in run 12"):
        play(link, lambda c: c.debug(12))
    link.answers = {1: STACK}
    assert dict(play(link, lambda c: c.debug())) == {1: STACK}
    assert link.sent[-1] == DebugFailure()
