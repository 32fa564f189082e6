"""Contact: what a node's silence does, and what its return undoes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jdist.controller.model.model import FromAgent, PeerGone
from jdist.core.messages.membership import (
    AgentLeaving,
    FormWorld,
    Heartbeat,
    LivenessLost,
    LivenessRenewed,
    Rejected,
    StartWorker,
    Welcome,
)
from jdist.core.messages.runs import AbortRun, Interrupt
from jdist.core.messages.status import Notice, StatusReport, StatusRequest
from support.driver import Driver, facts

SETTINGS = {"beat_timeout": 3.0, "node_grace": 15.0, "interrupt_grace": 4.0}


def cut(d: Driver, node: int) -> None:
    d.agents[f"a-{node}"].is_unreachable = True


def heal(d: Driver, node: int) -> None:
    agent = d.agents[f"a-{node}"]
    agent.is_unreachable = False
    d.step(FromAgent(agent.name, Heartbeat()))
    d.settle()


def notices(d: Driver) -> list[str]:
    return [n.text for n in d.told(Notice)]


def test_a_node_that_is_silent_for_a_while_loses_nothing() -> None:
    d = Driver(**SETTINGS).ready()
    run, alone = d.run((0, 2)), d.run((3,))
    cut(d, 1)
    d.agents["a-1"].finish(3)
    d.sleep(2.5)
    assert not notices(d)
    d.sleep(9.5)
    assert len(notices(d)) == 1
    assert notices(d)[0].startswith("node 1 (a-1) is unreachable: last heard 3.")
    assert "its ranks are kept for" in notices(d)[0]
    d.say(StatusRequest("s"))
    rows = d.told(StatusReport)[-1]
    assert [r.state for r in rows.ranks] == ["running", "idle", "unreachable", "unreachable"]
    assert rows.facts.unreachable == (1,)
    assert set(d.state.model.runs.running) == {run, alone}
    heal(d, 1)
    assert "node 1 (a-1) is back" in notices(d)[-1]
    assert d.kinds(alone) == {3: "value"}
    d.finish(0)
    d.finish(2)
    assert d.kinds(run) == {0: "value", 2: "value"}
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 1)
    assert not d.heard(AbortRun)
    assert not d.forgotten
    d.say(StatusRequest("s"))
    assert {r.state for r in d.told(StatusReport)[-1].ranks} == {"idle"}
    d.sleep(30.0)
    assert len(notices(d)) == 2


def test_a_node_that_is_silent_for_too_long_is_given_up_with_its_ranks() -> None:
    d = Driver(**SETTINGS).ready()
    run = d.run((0, 2))
    cut(d, 1)
    d.sleep(14.0)
    assert d.kinds(run) == {}
    d.sleep(2.0)
    assert d.kinds(run) == {2: "lost", 0: "interrupted"}
    error = next(m.error for m in d.runs[run].done if m.rank == 2)
    assert error is not None
    assert error.evalue == "node 1 (a-1) is gone: last heard 15 s ago"
    assert d.forgotten == ["a-1"]
    assert d.state.model.phase == "gathering"


def test_a_carried_node_is_kept_for_longer_and_then_the_way_that_outlives_that_is_named() -> None:
    d = Driver(nproc=(1,), carried_grace=60.0, **SETTINGS)
    d.add_agent("a-0")
    d.add_agent("a-1", facts=replace(facts("a-1"), is_carried=True, launcher_name="b"))
    d.settle()
    assert {w.node_rank: w.agent_grace for w in d.heard(Welcome)} == {0: 60.0, 1: 60.0}
    d.attach()
    cut(d, 1)
    d.sleep(59.0)
    assert len(notices(d)) == 1
    assert "its ranks are kept for 57 s" in notices(d)[0]
    d.sleep(2.0)
    lost = "last heard 60 s ago; a cluster that is started with --at b outlives longer breaks of the login"
    assert any(lost in text for text in notices(d))


def test_an_agent_that_was_given_up_comes_back_with_fresh_ranks() -> None:
    d = Driver(**SETTINGS).ready()
    d.run(is_setup=True)
    for rank in range(4):
        d.finish(rank)
    cut(d, 1)
    d.sleep(20.0)
    agent = d.agents["a-1"]
    first = agent.liveness_name
    d.step(FromAgent("a-1", Heartbeat()))
    assert len([m for m in agent.heard if isinstance(m, Welcome)]) == 1, "a beat takes no place"
    d.greet(agent)
    d.step(PeerGone(first))  # it has dialled another in its place
    d.settle()
    welcomes = [m for m in agent.heard if isinstance(m, Welcome)]
    assert [tuple(each.incarnation for each in w.workers) for w in welcomes] == [(0, 0), (1, 1)]
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert sorted(agent.cells) == [2, 3], "they run the setup cell"
    assert [r.is_fresh for r in d.state.model.world.ranks.values()] == [False, False, True, True]


def test_an_agent_whose_place_is_taken_is_turned_away() -> None:
    d = Driver(**SETTINGS).ready()
    cut(d, 1)
    d.sleep(20.0)
    d.agents["a-1"].is_unreachable = False
    d.agents["a-1"].is_gone = True
    d.add_agent("a-new")
    d.settle()
    assert d.state.model.generation == 2
    d.greet(d.agents["a-1"])
    (turned,) = [m for m in d.agents["a-1"].heard if isinstance(m, Rejected)]
    assert "are here already" in turned.reason


def test_a_rank_that_cannot_have_heard_of_an_interrupt_is_not_given_up() -> None:
    d = Driver(**SETTINGS).ready()
    run = d.run((0, 2))
    cut(d, 1)
    d.sleep(3.5)
    d.say(Interrupt("i"))
    d.settle()
    assert d.kinds(run) == {0: "interrupted"}
    d.sleep(7.0)
    heal(d, 1)
    assert d.kinds(run) == {0: "interrupted", 2: "interrupted"}
    assert not d.heard(StartWorker)
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


def test_a_rank_gets_its_whole_grace_after_its_node_is_back() -> None:
    d = Driver(**SETTINGS).ready()
    d.agents["a-1"].frees = False
    d.run((0, 2))
    cut(d, 1)
    d.sleep(3.5)
    d.say(Interrupt("i"))
    d.sleep(7.5)
    heal(d, 1)
    d.sleep(3.5)
    assert not d.heard(StartWorker)
    d.sleep(5.0)
    assert d.heard(StartWorker) == [StartWorker(2, 2, 1, keeps_names=True)]


def test_a_world_is_formed_across_a_cut_once_it_is_over() -> None:
    d = Driver(**SETTINGS).ready()
    run = d.run((0,))
    cut(d, 1)
    d.sleep(4.0)
    d.say(Interrupt("i"))
    d.settle()
    assert d.kinds(run) == {0: "interrupted"}
    assert {f.generation for f in d.heard(FormWorld)} == {1, 2}
    d.sleep(4.0)
    assert d.state.model.phase == "forming"
    heal(d, 1)
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


@pytest.mark.parametrize("how", ["controller", "agent"])
def test_a_lifeline_that_broke_is_replaced_and_costs_nothing(how: str) -> None:
    d = Driver(**SETTINGS).ready()
    agent = d.agents["a-1"]
    first = agent.liveness_name
    if how == "controller":
        d.step(PeerGone(first, is_dead=False))
    else:
        d.step(FromAgent("a-1", LivenessLost()))
    (new,) = [m for m in agent.heard if isinstance(m, LivenessRenewed)]
    assert d.state.model.liveness_names[new.name] == "a-1"
    d.step(PeerGone(first))
    assert d.state.model.world.is_complete, "the end of the old one tells nothing"
    d.lose(agent)
    assert not d.state.model.world.is_complete


def test_an_agent_that_dies_while_it_is_unreachable_is_gone_when_that_is_known() -> None:
    d = Driver(**SETTINGS).ready()
    cut(d, 1)
    d.sleep(4.0)
    d.lose(d.agents["a-1"])
    assert notices(d)[-1].endswith("node 1 (a-1) is gone: its agent's process ended")
    d.say(StatusRequest("s"))
    assert [r.state for r in d.told(StatusReport)[-1].ranks] == ["idle", "idle", "gone", "gone"]
    assert d.told(StatusReport)[-1].facts.unreachable == ()


def test_an_agent_that_is_told_to_end_says_by_whom_and_its_run_with_it() -> None:
    d = Driver(**SETTINGS).ready()
    run = d.run()
    d.step(FromAgent("a-1", AgentLeaving("its agent was ended by SIGTERM: job 7 has reached its time limit")))
    d.lose(d.agents["a-1"])
    assert d.kinds(run)[2] == "lost"
    gone = "node 1 (a-1) is gone: its agent was ended by SIGTERM: job 7 has reached its time limit"
    assert [n for n in notices(d) if n.endswith(gone)]
    assert not [n for n in notices(d) if n.endswith("process ended")]
    assert d.state.model.world.nodes[0].is_here
