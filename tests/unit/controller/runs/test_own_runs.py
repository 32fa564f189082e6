"""Reforms: when the functions for re-forming are called, before and after what, and how their calling ends."""

from __future__ import annotations

from jdist.controller.model.model import FromAgent
from jdist.core.messages.membership import FormWorld, Restart, WorldFormed
from jdist.core.messages.observation import Activity, Call, GroupProgress, Observation
from jdist.core.messages.runs import Interrupt, RankDone
from jdist.core.messages.status import Notice
from jdist.core.outcome import ErrorInfo
from support.driver import Driver
from support.rank_polls import answer, stall

ALL = (0, 1, 2, 3)


def wanting(*ranks: int, **settings: float) -> Driver:
    """A world in which cells of some ranks have given functions: they say so at each forming from now on."""
    d = Driver(**settings).ready()
    for agent in d.agents.values():
        agent.wants = set(ranks)
    return d


def reform(d: Driver) -> None:
    """An interrupt has the world formed again."""
    d.run((0,))
    d.say(Interrupt("i"))
    d.settle()


def calling(d: Driver) -> list[int]:
    """The ranks that are calling functions now."""
    return sorted(r for a in d.agents.values() for r, cell in a.cells.items() if "reform" in cell.spec.code)


def test_they_are_called_on_all_ranks_before_the_next_cell() -> None:
    d = wanting(1)
    d.run((0,))
    d.say(Interrupt("i"))
    run = d.run((2,))
    d.settle()
    assert d.state.model.generation == 2
    assert calling(d) == [0, 1, 2, 3]
    assert "call_on_reform(2)" in d.agent_of(0).cells[0].spec.code
    for rank in ALL:
        d.finish(rank)
    assert d.agent_of(2).cells[2].run == run


def test_not_where_nobody_has_given_any() -> None:
    d = wanting()
    reform(d)
    assert d.state.model.generation == 2
    assert calling(d) == []


def test_a_fresh_rank_runs_its_setup_cell_first() -> None:
    d = wanting(0, 1, 2)
    d.run((3,), is_setup=True)
    d.finish(3)
    d.agent_of(3).kill(3)
    d.settle()
    assert calling(d) == []
    assert list(d.agent_of(3).cells) == [3]
    d.finish(3)
    assert calling(d) == [0, 1, 2, 3]


def test_a_rank_that_dies_before_they_were_called_has_them_called_once() -> None:
    d = wanting(0, 1)
    d.run((3,), is_setup=True)
    d.finish(3)
    d.agent_of(3).kill(3)
    d.settle()
    d.agent_of(3).kill(3)
    d.settle()
    d.finish(3)
    assert calling(d) == [0, 1, 2, 3]
    for rank in ALL:
        d.finish(rank)
    assert calling(d) == []
    assert not d.state.model.runs.queued


def test_an_error_is_told_with_the_rank_and_changes_nothing_else() -> None:
    d = wanting(0)
    reform(d)
    run = d.agent_of(1).cells[1].run
    d.agent_of(1).cells.pop(1)
    error = ErrorInfo("ValueError", "no such file", cell_line=3)
    d.step(FromAgent("a-0", RankDone(run, 1, "error", 0.1, error=error)))
    told = d.told(Notice)[-1].text
    assert told == "a function of jdist.on_reform failed on rank 1 (node 0, a-0) at line 3: ValueError: no such file"
    for rank in (0, 2, 3):
        d.finish(rank)
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    reform(d)
    assert calling(d) == [0, 1, 2, 3], "the next time they are called again"


def test_what_ends_their_calling_does_not_have_them_called_again() -> None:
    d = wanting(0)
    reform(d)
    d.say(Interrupt("i2"))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 3)
    assert calling(d) == []
    assert "call them in a cell" in d.told(Notice)[-1].text
    reform(d)
    assert calling(d) == [0, 1, 2, 3]


def test_a_death_in_their_calling_does_not_go_on_for_ever() -> None:
    d = wanting(0)
    reform(d)
    d.agent_of(2).kill(2)
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 3)
    assert calling(d) == []


def test_one_that_waits_for_ranks_which_are_done_is_ended_and_says_why() -> None:
    d = wanting(0)
    for agent in d.agents.values():
        agent.answers = False
    reform(d)
    run = d.agent_of(0).cells[0].run
    d.finish(0)
    stall(d, 3, run)
    blocked = Activity("collective", "all_reduce", 3, seconds=0.4, calls=(Call("all_reduce", "0", 1),))
    waits = Observation("cpu", blocked, 1, (GroupProgress.of("0", ALL, 1, 0, "world"),))
    free = Observation("cpu", Activity("idle"), 1, (GroupProgress.of("0", ALL, 0, 0, "world"),))
    answer(d, r0=free, r1=waits, r2=waits, r3=waits)
    d.settle()
    told = [n.text for n in d.told(Notice) if "on_reform was ended" in n.text]
    assert len(told) == 1
    assert "on ranks 1-3" in told[0]
    assert "all_reduce" in told[0]
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 3)
    assert calling(d) == []


def test_the_generation_is_the_new_one_after_a_restart() -> None:
    d = wanting(0)
    d.say(Restart("r", (3,)))
    d.settle()
    assert calling(d) == [0, 1, 2, 3]
    assert f"call_on_reform({d.heard(FormWorld)[-1].generation})" in d.agent_of(3).cells[3].spec.code
    assert WorldFormed(0, 1, "cpu", ()).wants_reform is False
