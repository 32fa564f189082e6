"""A world of fewer nodes than were asked for: those that are here close up, and nobody is left out who may come."""

from __future__ import annotations

import pytest

from jdist.core.messages.membership import DropNodes, Rejected, Resized, StartStore
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.status import ClusterFacts, Notice, RequestRefused
from support.driver import Driver


def leave_out(d: Driver, *nodes: int) -> None:
    d.say(DropNodes("less", {n: f"reason {n}" for n in nodes}))
    d.settle()


def refusals(d: Driver) -> list[str]:
    return [m.reason for m in d.told(RequestRefused)]


def test_the_world_is_formed_with_those_that_are_here_and_the_others_are_told_of() -> None:
    d = Driver(nnodes=4, nproc=(1, 2, 3, 4), min_nodes=2)
    d.attach()
    third = d.add_agent("a-2", wanted=2)
    fourth = d.add_agent("a-3", wanted=3)
    assert not third.heard
    leave_out(d, 0, 1)
    assert d.state.model.phase == "ready"
    assert (third.place, fourth.place) == (0, 1)
    assert StartStore in [type(m) for m in third.heard], "the store is on the first of those that are here"
    facts = d.told(ClusterFacts)[-1]
    assert (facts.nnodes, facts.nproc_per_node, facts.hostnames) == (2, (3, 4), ("a-2", "a-3"))
    assert facts.left_out == ("node 0 was left out: reason 0", "node 1 was left out: reason 1")
    (answer,) = [a.body for a in d.told(RankReply) if isinstance(a.body, Resized)]
    assert answer.world_size == 7
    assert answer.notes[-1] == "the world is formed with 2 of 4 nodes: node 0 is a-2, node 1 is a-3"
    assert any("reason 1" in n.text for n in d.told(Notice))
    d.run(range(7))


def test_a_node_that_comes_after_it_was_left_out_is_turned_away() -> None:
    d = Driver(nnodes=3, min_nodes=2)
    d.attach()
    d.add_agent("a-0", wanted=0)
    d.add_agent("a-2", wanted=2)
    leave_out(d, 1)
    late = d.add_agent("a-1", wanted=1)
    assert [type(m) for m in late.heard] == [Rejected]
    d.settle()
    assert d.state.model.phase == "ready"


def test_a_node_that_was_here_and_is_gone_again_may_be_left_out() -> None:
    d = Driver(nnodes=3, min_nodes=2)
    d.attach()
    gone = d.add_agent("a-0", wanted=0)
    leave_out(d, 0, 1, 2)
    assert refusals(d) == ["node 0 is here"], "as far as anybody knows"
    gone.is_gone = gone.is_unreachable = True
    d.sleep(d.state.model.settings.node_grace + 1)
    d.add_agent("a-1", wanted=1)
    d.add_agent("a-2", wanted=2)
    leave_out(d, 0)
    assert d.told(ClusterFacts)[-1].hostnames == ("a-1", "a-2")
    assert d.state.model.phase == "ready"


@pytest.mark.parametrize(
    ("least", "here", "out", "why"),
    [
        (1, (0,), (1,), "node 2 is still awaited"),
        (2, (0,), (1, 2), "1 of 3 nodes are here; at least 2 are needed"),
        (0, (0, 1), (2,), "2 of 3 nodes are here; at least 3 are needed"),
    ],
)
def test_who_cannot_be_left_out(least: int, here: tuple[int, ...], out: tuple[int, ...], why: str) -> None:
    d = Driver(nnodes=3, min_nodes=least)
    d.attach()
    for n in here:
        d.add_agent(f"a-{n}", wanted=n)
    leave_out(d, *out)
    assert refusals(d) == [why]
    assert d.state.model.phase == "gathering"
    for n in {0, 1, 2} - set(here):
        d.add_agent(f"a-{n}", wanted=n)
    d.settle()
    assert d.state.model.phase == "ready"
    assert d.told(ClusterFacts)[-1].left_out == ()


def test_nobody_is_left_out_of_a_world_that_is_there() -> None:
    d = Driver(min_nodes=1).ready()
    leave_out(d, 1)
    assert refusals(d) == ["all nodes have come; ranks that are not wanted can be removed from the world"]
