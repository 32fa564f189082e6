"""Pausing: who is paused, what may run there, what stands still, and how a pause ends."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from jdist.client.link import Link
from jdist.controller.model.model import FromAgent, PeerGone
from jdist.core.messages.base import Ack
from jdist.core.messages.debug import (
    FollowRun,
    Pause,
    PauseRanks,
    RankPaused,
    RanksResumed,
    Resume,
    ResumeRanks,
    RunFollowed,
)
from jdist.core.messages.membership import RemoveRanks, Restart
from jdist.core.messages.observation import StackFrame
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.runs import (
    AbortRun,
    ExecuteCell,
    Interrupt,
    Output,
    RankDone,
    RunAccepted,
    RunEnded,
    RunStarted,
    Text,
)
from jdist.core.messages.status import OBSERVER, ClusterFacts, Notice, RequestRefused, StatusReport, StatusRequest
from support.driver import Driver


def paused(ranks: tuple[int, ...] = (0, 1, 2, 3), **options: object) -> tuple[Driver, int]:
    """A world in which a run on all ranks is paused on some."""
    d = Driver(**options).ready()  # type: ignore[arg-type]
    run = d.run()
    d.say(Pause("p", ranks))
    d.settle()
    return d, run


def report(d: Driver) -> StatusReport:
    d.say(StatusRequest("s"))
    return d.told(StatusReport)[-1]


def refusal(d: Driver) -> str:
    return d.told(RequestRefused)[-1].reason


def test_ranks_pause_and_go_on() -> None:
    d = Driver().ready()
    d.agents["a-1"].pauses = False
    run = d.run()
    d.say(Pause("p"))
    assert d.told(RankReply)[-1] == RankReply("p", -1, Ack())
    assert [(m.run, m.workers) for m in d.heard(PauseRanks)] == [(run, (0, 1)), (run, (2, 3))]
    d.settle()
    assert [(p.run, p.rank) for p in d.told(RankPaused)] == [(run, 0), (run, 1)]
    assert d.told(ClusterFacts)[-1].paused == (0, 1)
    found = report(d)
    assert [row.state for row in found.ranks] == ["paused", "paused", "running", "running"]
    assert [row.is_pausing for row in found.ranks] == [False, False, True, True]
    assert [row.run for row in found.ranks] == [run] * 4
    assert found.ranks[1].paused is not None
    assert found.ranks[1].paused.at.place == "train_step, line 8"
    assert found.runs[0][:2] == (run, "paused")

    d.say(Resume("c", ranks=(1, 2)))
    assert d.heard(ResumeRanks) == [ResumeRanks(run, (1,)), ResumeRanks(run, (2,))]
    assert d.told(RanksResumed) == [RanksResumed(run, (1, 2))]
    assert d.told(ClusterFacts)[-1].paused == (0,)
    assert [row.is_pausing for row in report(d).ranks] == [False, False, False, True]
    d.agents["a-1"].resumes[2] = 0
    d.agents["a-1"].pause(2)  # it has crossed the order to go on
    d.settle()
    assert d.told(ClusterFacts)[-1].paused == (0,)

    d.say(Resume("n", "next"))
    assert d.agents["a-0"].heard[-1] == ResumeRanks(run, (0,), "next")
    assert d.told(RanksResumed)[-1] == RanksResumed(run, (0,), "next")
    assert [row.is_pausing for row in report(d).ranks] == [True, False, False, True], "the step is under way"
    d.agents["a-0"].pause(0, "step", 9)
    d.settle()
    assert [(p.reason, p.at.line, p.resumes) for p in d.told(RankPaused)][-1] == ("step", 9, 1)

    d.say(Resume("u", "until", line=12))
    d.say(Resume("c"))
    assert d.told(RanksResumed)[-1].ranks == (0, 3), "a step is given up, and who has not paused yet does not"
    for rank in range(4):
        d.finish(rank)
    assert d.kinds(run) == dict.fromkeys(range(4), "value")
    assert (d.told(RunEnded)[-1].reason, d.told(ClusterFacts)[-1].paused) == ("", ())
    assert not d.heard(AbortRun)


def test_what_cannot_be_done_is_refused_in_words() -> None:
    d = Driver().ready()
    d.say(Pause("p"))
    assert refusal(d) == "nothing is running that could be paused"
    d.say(Pause("p", (1, 9)))
    assert refusal(d).startswith("there is no rank 9")
    d.say(Resume("c"))
    assert refusal(d) == "no rank is paused"
    run = d.run((0, 1))
    waiting = d.run((1, 2))
    d.say(Pause("p", (3,)))
    assert refusal(d) == "nothing is running on rank 3 that could be paused"
    d.say(Pause("p", run=waiting))
    assert refusal(d) == f"run {waiting} has not started: it is queued behind other runs"
    d.say(Pause("p", run=99))
    assert refusal(d) == "there is no unfinished run 99"
    d.say(Pause("p", (1,), run))
    d.settle()
    d.say(Resume("c", ranks=(0,)))
    assert refusal(d) == "rank 0 is not paused"
    d.say(Resume("u", "until"))
    assert refusal(d) == "until needs a line number of at least 1"
    d.say(FollowRun("f", 99))
    assert refusal(d) == "there is no unfinished run 99"
    d.say(RemoveRanks("r", (3,)))
    assert f"run {run} is paused on rank 1" in refusal(d)
    assert [m.workers for m in d.heard(PauseRanks)] == [(1,)]
    d.agents["a-0"].frees = False
    d.say(Interrupt(run=run))
    d.say(Pause("p"))
    assert refusal(d) == "what is running is already being stopped"


def test_cells_run_in_the_paused_frames_one_after_another() -> None:
    d, run = paused((0, 1, 3))
    d.agents["a-1"].pauses = False
    first, second = d.run((0, 1)), d.run((1, 3))
    everywhere = d.run()
    accepted = [(m.run, m.behind) for m in d.told(RunAccepted)[1:]]
    assert accepted == [(first, ()), (second, (first,)), (everywhere, (run, first, second))]
    assert [(c.workers, c.in_run) for c in d.heard(ExecuteCell) if c.run == first] == [((0, 1), run)]
    row = report(d).ranks[0]
    assert (row.run, row.state, row.paused is not None) == (first, "running", True)
    assert d.told(ClusterFacts)[-1].paused == (0, 1, 3), "whatever runs there"
    d.finish(0, "error")
    d.finish(1)
    assert d.kinds(first) == {0: "error", 1: "value"}
    assert {c.workers for c in d.heard(ExecuteCell) if c.run == second} == {(1,), (3,)}
    d.finish(1)
    d.finish(3)
    assert set(d.state.model.runs.running) == {run}, "rank 2 is not paused"
    d.agents["a-1"].pause(2)
    d.settle()
    assert {(c.workers, c.in_run) for c in d.heard(ExecuteCell) if c.run == everywhere} == {
        ((0, 1), run),
        ((2, 3), run),
    }
    d.say(Resume("c"))
    assert report(d).runs[0][1] == "running"
    for _ in range(2):  # the inner run, then the one around it
        for rank in range(4):
            d.finish(rank)
    assert [(e.run, e.reason) for e in d.told(RunEnded)] == [(n, "") for n in (first, second, everywhere, run)]
    assert d.kinds(run) == dict.fromkeys(range(4), "value"), "an error in a paused frame ends the inner run alone"


def test_what_was_queued_before_a_pause_waits_for_the_end_of_the_run() -> None:
    d = Driver().ready()
    run, after = d.run(), d.run()
    d.say(Pause("p"))
    d.settle()
    assert set(d.state.model.runs.running) == {run}
    inner = d.run((0,))
    assert d.told(RunAccepted)[-1].behind == (), "it is wanted elsewhere than the run before it in the queue"
    d.finish(0)
    d.say(Resume("c"))
    for rank in range(4):
        d.finish(rank)
    assert [m.run for m in d.told(RunStarted)] == [run, inner, after]
    assert d.heard(ExecuteCell)[-1].in_run == 0


def test_a_cell_on_paused_and_idle_ranks_runs_on_each_in_its_place() -> None:
    d = Driver().ready()
    run = d.run((0, 1))
    d.say(Pause("p"))
    d.settle()
    both = d.run()
    cells = [(c.workers, c.in_run) for c in d.heard(ExecuteCell) if c.run == both]
    assert sorted(cells) == [((0, 1), run), ((2, 3), 0)]


def test_an_interrupted_inner_run_leaves_the_pause_and_the_group_unless_that_broke() -> None:
    d, run = paused(interrupt_grace=1.0)
    d.agents["a-0"].frees = d.agents["a-1"].frees = False
    inner = d.run((0, 1))
    d.say(Interrupt(run=inner))
    assert [(a.run, a.workers, a.is_inner) for a in d.heard(AbortRun)] == [(inner, (0, 1), True)]
    for rank in (0, 1):
        d.finish(rank, "error")
    assert d.kinds(inner) == dict.fromkeys((0, 1), "interrupted")
    assert (d.state.model.is_dirty, d.told(ClusterFacts)[-1].paused) == (False, (0, 1, 2, 3))
    inner = d.run((0,))
    d.agents["a-0"].inner.clear()
    d.say(Interrupt(run=inner))
    d.step(FromAgent("a-0", RankDone(inner, 0, "error", has_broken_group=True)))
    assert d.state.model.is_dirty
    assert d.run((0,)), "cells still run in the frames"
    assert [c.in_run for c in d.agents["a-0"].heard if isinstance(c, ExecuteCell)][-1] == run
    assert d.state.model.phase == "ready"
    d.finish(0)
    d.agents["a-0"].frees = d.agents["a-1"].frees = True
    d.say(Interrupt())
    d.settle()
    assert d.told(RunEnded)[-1] == msgspec.structs.replace(d.told(RunEnded)[-1], run=run, reason="interrupted")
    assert d.state.model.generation == 2


def test_an_interrupt_ends_inner_runs_first_and_those_that_wait_for_the_frames() -> None:
    d, run = paused((0, 1, 2))
    inner, waiting = d.run((0, 1)), d.run((0, 3))
    d.say(Interrupt(run=run))
    d.settle()
    assert [(a.run, a.is_inner) for a in d.agents["a-0"].heard if isinstance(a, AbortRun)] == [
        (inner, True),
        (run, False),
    ]
    assert d.told(RanksResumed) == [RanksResumed(run, (0, 1, 2))]
    assert sorted(e.run for e in d.told(RunEnded)) == [run, inner, waiting]
    assert {e.reason for e in d.told(RunEnded)} == {"interrupted"}
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    d.step(FromAgent("a-0", RankPaused(run, 0, "breakpoint", StackFrame("f", "", 1), 0)))
    assert d.told(ClusterFacts)[-1].paused == ()


def test_a_rank_that_is_not_free_in_time_is_replaced_after_its_inner_run() -> None:
    d, run = paused(interrupt_grace=1.0)
    d.agents["a-0"].frees = False
    inner = d.run((0,))
    d.say(Interrupt())
    d.settle()
    d.sleep(5.0)
    assert d.kinds(inner) == {0: "lost"}
    assert d.kinds(run)[0] == "lost"
    assert d.state.model.phase == "ready"


def test_the_timeout_stands_still_while_a_rank_is_paused() -> None:
    d = Driver().ready()
    run = d.run(timeout=10.0)
    d.sleep(4.0)
    d.say(Pause("p", (0, 3)))
    d.settle()
    assert d.told(Notice)[-1].text == f"the timeout of run {run} is suspended while ranks are paused (6 s left)"
    d.sleep(100.0)
    inner = d.run((0,), timeout=1.0)
    d.sleep(2.0)
    assert d.kinds(inner) == {0: "timeout"}, "an inner run has its own"
    d.say(Resume("c", ranks=(0,)))
    d.sleep(10.0)
    d.say(Resume("c"))
    d.sleep(5.5)
    d.say(Pause("p", (1,)))
    d.settle()
    d.say(Resume("c"))
    assert not [e for e in d.told(RunEnded) if e.run == run]
    d.sleep(1.0)
    assert set(d.kinds(run).values()) == {"timeout"}
    assert len([n for n in d.told(Notice) if "is suspended" in n.text]) == 1


@pytest.mark.parametrize("lost", ["paused", "other", "inner", "node"])
def test_the_loss_of_a_rank_ends_the_pause_of_the_others_as_an_interrupt_does(lost: str) -> None:
    d, run = paused((0, 1, 2))
    inner = d.run((0, 1, 2)) if lost == "inner" else 0
    if lost == "node":
        d.lose(d.agents["a-1"])
    else:
        d.agents["a-1"].kill({"paused": 2, "other": 3, "inner": 2}[lost])
    d.settle()
    assert d.told(RanksResumed)[-1] == RanksResumed(run, (0, 1) if lost != "other" else (0, 1, 2))
    gone = {"paused": {2}, "other": {3}, "inner": {2}, "node": {2, 3}}[lost]
    assert {rank: kind for rank, kind in d.kinds(run).items() if kind == "lost"} == dict.fromkeys(gone, "lost")
    assert d.kinds(run)[0] == "interrupted"
    assert not inner or d.kinds(inner) == {0: "interrupted", 1: "interrupted", 2: "lost"}
    assert d.told(ClusterFacts)[-1].paused == ()
    if lost != "node":
        assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


def test_cells_run_in_paused_frames_whatever_else_the_world_lacks() -> None:
    d = Driver(on_death="wait").ready()
    run = d.run((0, 1))
    d.say(Pause("p"))
    d.settle()
    d.agents["a-1"].kill(3)
    d.settle()
    inner = d.run((0, 1))
    assert [(c.run, c.in_run) for c in d.heard(ExecuteCell)][-1] == (inner, run)
    assert not d.run((0, 2)), "but not elsewhere"


def test_a_restart_of_a_paused_rank_frees_the_others() -> None:
    d, run = paused()
    d.say(Restart("r", (1,)))
    d.settle()
    assert d.kinds(run) == {0: "interrupted", 1: "lost", 2: "interrupted", 3: "interrupted"}
    assert d.state.model.phase == "ready"


def test_clients_follow_a_run_and_outlive_the_one_that_began_it() -> None:
    d = Driver().ready()
    d.attach("c-2")
    d.inbox["c-2"].clear()
    run = d.run(client="c-1", allow_stdin=True)
    waiting = d.run(client="c-1")
    d.finish(3, "error")
    d.say(Pause("p", (1,)), "c-2")
    d.settle()
    assert not d.told(RankPaused, "c-2")
    d.say(FollowRun("f", run), "c-2")
    d.say(FollowRun("g", waiting), "c-2")
    first, second = d.told(RunFollowed, "c-2")
    assert (first.run, first.ranks, first.pending, first.ended) == (run, (0, 1, 2, 3), (0, 1, 2), {3: "error"})
    assert ([p.rank for p in first.paused], first.code != "") == ([1], True)
    assert (second.pending, second.seconds) == ((0, 1, 2, 3), -1.0)
    name = next(n for n, peer in d.state.model.liveness_names.items() if peer == "c-1")
    d.step(PeerGone(name))
    d.say(Resume("c"), "c-2")
    d.step(FromAgent("a-0", Output(run, (Text((0,), "stdout", "hello\n"),))))
    for rank in range(3):
        d.finish(rank)
    assert [type(m).__name__ for m in d.inbox["c-2"] if getattr(m, "run", 0) == run] == [
        "RunFollowed",
        "RanksResumed",
        "Output",
        *["RankDone"] * 3,
        "RunEnded",
    ]
    assert [m.run for m in d.told(RunStarted, "c-2")] == [waiting]
    d.say(Pause("p"), "c-2")
    d.settle()
    assert d.told(RankPaused, "c-2")
    d.step(PeerGone(next(n for n, peer in d.state.model.liveness_names.items() if peer == "c-2")))
    d.sleep(d.settings.idle_timeout + 1)
    assert d.exits == [f"no client for {d.settings.idle_timeout:.0f} s"], "a pause is no work"


def test_observers_hear_of_pauses() -> None:
    d = Driver().ready()
    d.state.model.clients["c-1"] = OBSERVER
    d.run()
    before = len(d.inbox["c-1"])
    d.say(Pause("p"))
    d.settle()
    kinds = [type(m).__name__ for m in d.inbox["c-1"][before:]]
    assert kinds.count("RunsChanged") == 5


def test_who_is_paused_is_known_to_a_client_before_it_hears_of_the_rank() -> None:
    """It may send a cell for the paused ranks in answer, or for all ranks if none is paused any more."""
    d = Driver().ready()
    run = d.run(ranks=(0, 1))
    at = StackFrame("train_step", "", 8)
    for worker in (0, 1):
        told = d.step(FromAgent("a-0", RankPaused(run, worker, "breakpoint", at, 0)))
        assert [type(m) for m in told if isinstance(m, ClusterFacts | RankPaused)] == [ClusterFacts, RankPaused]
    for worker in (0, 1):
        told = d.step(FromAgent("a-0", RankDone(run, worker, "value")))
        facts, *rest = [m for m in told if isinstance(m, ClusterFacts | RankDone | RunEnded)]
        assert isinstance(facts, ClusterFacts)
        assert facts.paused == ((1,) if worker == 0 else ())
        assert [type(m) for m in rest] == [RankDone] + [RunEnded] * worker


class Listening(Link):
    """A client's link without a connection, which only takes messages in."""

    def __init__(self) -> None:
        self.facts = None
        self._waiting = {}
        self._changed = asyncio.Event()
        self._on_event = lambda _: None


def test_a_pause_that_ends_in_the_same_step_leaves_no_rank_paused_for_a_client() -> None:
    """The facts before and after that step are the same, so that none are sent."""
    d = Driver().ready()
    link = Listening()
    for message in d.told(ClusterFacts):
        link._on_message(message)
    run, at = d.run(ranks=(0, 1)), StackFrame("train_step", "", 8)
    together = (RankPaused(run, 0, "breakpoint", at, 0), RankDone(run, 0, "value"))
    for message in d.step(*(FromAgent("a-0", message) for message in together)):
        link._on_message(message)
    assert link.facts is not None
    assert link.facts.paused == ()
