"""Forming: the world's process group is formed when all is there, and again whenever it may be out of step."""

from __future__ import annotations

import pytest

from jdist.controller.model.model import FromAgent
from jdist.core.messages.membership import (
    FormWorld,
    GroupCreated,
    GroupMade,
    GroupSpec,
    MakeGroup,
    MakeMesh,
    Restart,
    StartStore,
    StoreDown,
    StoreUp,
    WorldFailed,
    WorldFormed,
)
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.runs import ExecuteCell, RunEnded
from jdist.core.messages.status import ClusterFacts, Notice, RequestRefused, StatusReport, StatusRequest
from support.driver import Agent, Driver


def test_the_first_generation_is_formed_on_every_rank_at_once() -> None:
    d = Driver(nnodes=2, nproc=(2, 1), init_method="env://").ready()
    forms = d.heard(FormWorld)
    assert [(f.generation, f.workers, f.world_size, f.nproc_per_node) for f in forms] == [(1, (0, 1, 2), 3, (2, 1))] * 2
    assert {(f.store_host, f.store_port, f.backend, f.cut, f.replay) for f in forms} == {
        ("10.0.0.1", 4000, "gloo", (), ())
    }
    phases = [f.phase for f in d.told(ClusterFacts)]
    assert phases[0] == "gathering"
    assert phases[-2:] == ["forming", "ready"]


def test_nothing_is_formed_before_the_last_rank_is_up() -> None:
    d = Driver(nnodes=1)
    agent = d.add_agent("a-0")
    while len(agent.says) > 1:
        d.deliver(agent)
        assert not d.heard(FormWorld)
    d.deliver(agent)
    assert d.heard(FormWorld)


def test_formed_of_another_generation_does_not_count() -> None:
    d = Driver(nnodes=1, nproc=(2,))
    agent = d.add_agent("a-0", forms=False)
    d.settle()
    for rank, generation in ((0, 1), (0, 1), (1, 0), (1, 7)):
        d.step(FromAgent(agent.name, WorldFormed(rank, generation, "cpu", ())))
    assert d.state.model.phase == "forming"
    d.step(FromAgent(agent.name, WorldFormed(1, 1, "cpu", ())))
    assert d.state.model.phase == "ready"


def unformed() -> tuple[Driver, Agent, int]:
    """A world of two ranks, one of which cannot join it, and a cell that was sent before that was known."""
    d = Driver(nnodes=1, nproc=(2,))
    d.attach()
    agent = d.add_agent("a-0", forms=False)
    d.settle()
    first = d.run((0,))
    d.step(FromAgent(agent.name, WorldFailed(1, 1, "no such interface")))
    d.sleep(3.0)
    assert d.state.model.phase == "failed"
    assert "rank 1 (node 0, a-0) could not join the world: no such interface" in d.told(ClusterFacts)[-1].reason
    return d, agent, first


def test_cells_run_in_a_world_that_could_not_be_formed_which_is_formed_again_after_each() -> None:
    d, agent, first = unformed()
    (cell,) = d.heard(ExecuteCell)
    assert (cell.run, cell.workers) == (first, (0,))
    assert "no such interface" in cell.unformed
    (warning,) = [notice for notice in d.told(Notice) if notice.run == first]
    assert "no such interface" in warning.text
    second = d.run((1,))
    d.finish(0)
    assert d.state.model.phase == "failed", "a cell runs"
    d.finish(1)
    assert d.state.model.phase == "forming"
    agent.says.append(WorldFailed(1, 2, "still not"))
    d.settle()
    d.sleep(3.0)
    assert d.kinds(first) == {0: "value"}
    assert d.kinds(second) == {1: "value"}
    assert "still not" in d.told(ClusterFacts)[-1].reason
    third = d.run((0, 1))
    assert "still not" in d.heard(ExecuteCell)[-1].unformed
    agent.forms = True
    d.finish(0)
    d.finish(1)
    d.settle()
    assert d.state.model.phase == "ready"
    assert d.kinds(third) == {0: "value", 1: "value"}
    d.run((0, 1))
    assert d.heard(ExecuteCell)[-1].unformed == ""


def test_what_needs_the_world_is_refused_while_it_is_not_formed() -> None:
    d, _, _ = unformed()
    d.say(MakeGroup("group", "pair", (0, 1)))
    refused = d.told(RequestRefused)[-1]
    assert "no such interface" in refused.reason
    assert [remedy.action for remedy in refused.remedies] == ["run_cell"]


def test_a_rank_that_dies_in_a_cell_without_a_world_is_replaced() -> None:
    d, agent, first = unformed()
    agent.forms = True
    agent.kill(0)
    d.settle()
    assert d.kinds(first) == {0: "lost"}
    assert d.state.model.phase == "ready"


def test_a_restart_mends_a_world_that_could_not_be_formed() -> None:
    d, agent, _ = unformed()
    d.finish(0)
    agent.forms = True
    d.say(Restart("again", (1,)))
    d.settle()
    assert d.state.model.phase == "ready"
    assert d.told(ClusterFacts)[-1].reason == ""
    assert [a.request for a in d.told(RankReply)] == ["again"]


def test_a_forming_that_takes_too_long_fails_and_names_the_missing_ranks() -> None:
    d = Driver(nnodes=2, nproc=(2,), form_timeout=20.0)
    d.attach()
    d.add_agent("a-0")
    d.add_agent("a-1", forms=False)
    d.settle()
    d.sleep(19.0)
    assert d.state.model.phase == "forming"
    d.sleep(1.0)
    assert d.state.model.phase == "failed"
    assert d.told(ClusterFacts)[-1].reason == "ranks 2-3 did not join the world within 20 s"


@pytest.mark.parametrize("others_notice_first", [True, False])
def test_a_rank_that_dies_while_the_world_is_formed_is_replaced_and_the_next_generation_formed(
    *, others_notice_first: bool
) -> None:
    d = Driver(nnodes=1, nproc=(3,))
    d.attach()
    agent = d.add_agent("a-0", forms=False)
    d.settle()
    run = d.run((0,))
    failed = WorldFailed(0, 1, "Connection closed by peer")
    if others_notice_first:
        d.step(FromAgent(agent.name, failed))
    agent.forms = True
    agent.kill(1)
    d.settle()
    if not others_notice_first:
        d.step(FromAgent(agent.name, failed))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert d.state.model.world.ranks[1].is_fresh
    d.finish(0)
    assert d.kinds(run) == {0: "value"}


def test_a_rank_that_dies_in_every_forming_fails_the_world_instead_of_going_on_for_ever() -> None:
    d = Driver(nnodes=1, nproc=(2,))
    agent = d.add_agent("a-0", forms=False)
    d.settle()
    for _ in range(9):
        if d.state.model.phase == "forming":
            agent.kill(1, "killed by signal 11 (SIGSEGV)")
            d.settle()
    assert d.state.model.phase == "failed"
    assert "SIGSEGV" in d.state.model.reason
    assert d.state.model.generation == 4


def test_a_worker_that_cannot_start_fails_the_world_and_any_restart_tries_it_again() -> None:
    d = Driver(nnodes=1, nproc=(3,))
    d.attach()
    agent = d.add_agent("a-0", starts_workers=False)
    for rank in (0, 2):
        agent._start(rank, 0)
    agent.kill(1, "no memory")
    d.settle()
    assert d.state.model.phase == "failed"
    assert "rank 1 (node 0, a-0) could not be started: no memory" in d.state.model.reason
    agent.starts_workers = True
    agent._start(0, 0)
    agent._start(2, 0)
    d.settle()
    d.say(Restart("again", (0,)))
    d.settle()
    assert d.state.model.phase == "ready", "rank 1 was replaced too: the world cannot be formed without it"


def test_a_store_that_cannot_start_fails_the_world_and_a_restart_starts_another() -> None:
    d = Driver(nnodes=1, nproc=(1,))
    d.attach()
    agent = d.add_agent("a-0")
    agent.says.clear()
    agent._start(0, 0)
    agent.says.append(StoreDown("node 0: port 29500 is taken"))
    d.settle()
    assert d.state.model.phase == "failed"
    assert "port 29500 is taken" in d.state.model.reason
    d.say(Restart("again", (0,)))
    d.settle()
    assert len(d.heard(StartStore)) == 2
    assert d.state.model.phase == "ready"


def test_a_store_that_dies_and_is_replaced_while_the_world_is_formed_is_no_failure() -> None:
    d = Driver(nnodes=1, nproc=(2,))
    d.attach()
    agent = d.add_agent("a-0", forms=False)
    d.settle()
    run = d.run((0,))
    for rank in (0, 1):
        d.step(FromAgent("a-0", WorldFailed(rank, 1, "rank lost the rendezvous store: Broken pipe")))
    d.sleep(1.0)
    agent.forms = True
    d.step(FromAgent("a-0", StoreUp("10.0.0.1", 4001)))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert d.heard(FormWorld)[-1].store_port == 4001
    assert set(d.state.model.runs.running) == {run}


def test_another_store_makes_another_generation_once_nobody_runs() -> None:
    d = Driver().ready()
    d.run((0,))
    d.step(FromAgent("a-0", StoreUp("10.0.0.1", 4001)))
    assert d.state.model.generation == 1
    d.finish(0)
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    d.step(FromAgent("a-0", StoreUp("10.0.0.1", 4001)))
    assert d.state.model.generation == 2, "the same store again is no news"


# ---------------------------------------------------------------- groups


def test_a_named_group_and_a_mesh_come_with_the_next_generation() -> None:
    d = Driver().ready()
    d.say(MakeGroup("g", "odd", (1, 3)))
    assert d.state.model.phase == "forming"
    d.settle()
    d.say(MakeMesh("m", ("dp", "tp"), (2, 2)))
    d.settle()
    last = d.heard(FormWorld)[-1]
    assert (last.generation, last.named, last.mesh) == (3, {"odd": (1, 3)}, (("dp", "tp"), (2, 2)))
    assert [(a.request, a.body) for a in d.told(RankReply)] == [
        ("g", GroupCreated("odd: ranks 1,3")),
        ("m", GroupCreated("mesh dp=2, tp=2")),
    ]
    assert d.told(ClusterFacts)[-1].groups == {"odd": (1, 3)}


def test_a_group_asked_for_while_the_world_is_formed_is_answered_when_it_is_in_a_generation() -> None:
    d = Driver(nnodes=1, nproc=(2,)).ready()
    agent = d.agents["a-0"]
    d.say(MakeGroup("one", "a", (0,)))
    d.say(MakeGroup("two", "b", (1,)))
    assert [set(f.named) for f in d.heard(FormWorld)] == [set(), {"a"}]
    while not d.told(RankReply):
        d.deliver(agent)
    assert [a.request for a in d.told(RankReply)] == ["one"]
    d.settle()
    assert [a.request for a in d.told(RankReply)] == ["one", "two"]
    assert set(d.heard(FormWorld)[-1].named) == {"a", "b"}


@pytest.mark.parametrize(
    "message",
    [
        MakeGroup("x", "g", (0, 9)),
        MakeGroup("x", "g", ()),
        MakeMesh("x", ("dp",), (3,)),
        Restart("x", (9,)),
        Restart("x", ()),
    ],
)
def test_a_group_mesh_or_restart_of_ranks_that_are_not_there_is_refused(message: MakeGroup) -> None:
    d = Driver().ready()
    d.say(message)
    assert [r.request for r in d.told(RequestRefused)] == ["x"]
    assert "ranks 0-3" in d.told(RequestRefused)[0].reason or "4" in d.told(RequestRefused)[0].reason
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 1), "a refused request changes nothing"


def test_a_group_waits_for_the_runs_in_progress() -> None:
    d = Driver().ready()
    run = d.run((0,))
    d.say(MakeGroup("g", "odd", (1, 3)))
    d.settle()
    assert d.state.model.generation == 1
    later = d.run((1,))
    assert later not in d.state.model.runs.running, "no run starts in a world that is about to be left"
    d.finish(0)
    assert d.state.model.generation == 2
    assert set(d.state.model.runs.running) == {later}
    assert d.kinds(run) == {0: "value"}


@pytest.mark.parametrize("state", ["failed", "a node is gone"])
def test_a_group_in_a_world_that_cannot_be_formed_is_refused_at_once(state: str) -> None:
    d = Driver().ready()
    if state == "failed":
        d.step(FromAgent("a-0", StoreDown("gone")))
    else:
        d.lose(d.agents["a-1"])
    d.say(MakeGroup("g", "odd", (1,)))
    assert [r.request for r in d.told(RequestRefused)] == ["g"]


def test_a_request_that_waits_for_a_node_that_leaves_is_refused() -> None:
    d = Driver().ready()
    d.run((0,))
    d.say(MakeGroup("g", "odd", (1, 3)))
    d.lose(d.agents["a-1"])
    assert [r.request for r in d.told(RequestRefused)] == ["g"]
    assert "node 1" in d.told(RequestRefused)[0].reason


# ---------------------------------------------------------------- groups that cells made


def made(d: Driver, rank: int, index: int, *ranks: int, generation: int | None = None) -> None:
    spec = GroupSpec(tuple(ranks))
    g = d.state.model.generation if generation is None else generation
    d.step(FromAgent(d.agent_of(rank).name, GroupMade(rank, g, index, spec, (("10.0.0.1", 6000 + 10 * rank + index),))))


def test_groups_that_all_ranks_made_are_made_again_in_order() -> None:
    d = Driver(nnodes=1, nproc=(2,)).ready()
    for rank in (0, 1):
        made(d, rank, 0, 0, 1)
        made(d, rank, 1, 1)
    d.say(StatusRequest("s"))
    assert [g.ranks for g in d.told(StatusReport)[-1].groups] == [(0, 1), (1,)]
    d.say(MakeMesh("m", ("dp",), (2,)))
    form = d.heard(FormWorld)[-1]
    assert [g.ranks for g in form.replay] == [(0, 1), (1,)]
    assert set(form.cut) >= {("10.0.0.1", 5000), ("10.0.0.1", 5001), ("10.0.0.1", 6000), ("10.0.0.1", 6011)}
    d.settle()
    made(d, 0, 2, 0)
    made(d, 1, 2, 0)
    d.say(MakeMesh("m", ("dp",), (2,)))
    form = d.heard(FormWorld)[-1]
    assert [g.ranks for g in form.replay] == [(0, 1), (1,), (0,)]
    assert set(form.cut) == {("10.0.0.1", port) for port in (5000, 5001, 6002, 6012)}, "those of the last generation"


def test_a_group_that_only_some_ranks_made_is_left_out_with_all_after_it() -> None:
    d = Driver(nnodes=1, nproc=(3,)).ready()
    for rank in (0, 1, 2):
        made(d, rank, 0, 0, 1)
    for rank in (0, 1):
        made(d, rank, 1, 1, 2)
    made(d, 2, 1, 0, 2)
    made(d, 2, 2, 1)
    d.say(MakeMesh("m", ("dp",), (3,)))
    assert [g.ranks for g in d.heard(FormWorld)[-1].replay] == [(0, 1)]


def test_a_group_of_an_earlier_generation_that_is_told_late_is_not_listed() -> None:
    d = Driver(nnodes=1, nproc=(1,)).ready()
    d.say(MakeMesh("m", ("dp",), (1,)))
    d.settle()
    made(d, 0, 0, 0, generation=1)
    d.say(MakeMesh("m", ("dp",), (1,)))
    assert d.heard(FormWorld)[-1].replay == ()


def test_a_fresh_rank_gets_the_groups_of_the_others() -> None:
    d = Driver(nnodes=1, nproc=(2,)).ready()
    for rank in (0, 1):
        made(d, rank, 0, 0, 1)
    d.agents["a-0"].kill(1)
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert [g.ranks for g in d.heard(FormWorld)[-1].replay] == [(0, 1)]
    made(d, 1, 1, 0)
    made(d, 0, 1, 0)
    d.say(StatusRequest("s"))
    assert [g.ranks for g in d.told(StatusReport)[-1].groups] == [(0, 1), (0,)]


# ---------------------------------------------------------------- setup cells


def test_setup_cells_run_again_on_fresh_ranks_only_in_order_and_first() -> None:
    d = Driver(nnodes=1, nproc=(2,)).ready()
    agent = d.agents["a-0"]
    codes = []
    for _ in range(2):
        run = d.run((0, 1), is_setup=True)
        codes.append(agent.cells[0].spec.code)
        d.finish(0)
        d.finish(1)
        assert d.kinds(run) == {0: "value", 1: "value"}
    agent.kill(1)
    d.deliver(agent)
    d.run((0, 1))
    d.settle()
    assert agent.cells[1].spec.code == codes[0]
    d.finish(1)
    assert agent.cells[1].spec.code == codes[1]
    assert 0 not in agent.cells, "the user's cell waits for the setup"
    d.finish(1)
    assert agent.cells[0].spec.code == agent.cells[1].spec.code not in codes


def test_setup_survives_an_interrupt_and_a_second_death_before_it_ran() -> None:
    d = Driver(nnodes=1, nproc=(2,)).ready()
    agent = d.agents["a-0"]
    d.run((0, 1), is_setup=True)
    code = agent.cells[0].spec.code
    d.finish(0)
    d.finish(1)
    agent.kill(1)
    d.settle()
    assert agent.cells[1].spec.code == code
    agent.kill(1)
    d.settle()
    assert agent.cells[1].spec.code == code
    d.finish(1)
    assert 1 not in agent.cells, "once is enough"


def test_a_rank_that_dies_between_its_setup_cells_runs_each_of_them_once() -> None:
    d = Driver(nnodes=1, nproc=(1,)).ready()
    agent = d.agents["a-0"]
    for _ in range(2):
        d.run((0,), is_setup=True)
        d.finish(0)
    codes = [c.spec.code for c in d.heard(ExecuteCell)]
    agent.kill(0)
    d.settle()
    agent.kill(0)
    d.settle()
    while agent.cells:
        d.finish(0)
    assert [c.spec.code for c in d.heard(ExecuteCell)] == [*codes, codes[0], *codes]


def test_a_setup_cell_that_fails_on_a_fresh_rank_is_told_to_everybody() -> None:
    d = Driver(nnodes=1, nproc=(1,)).ready()
    agent = d.agents["a-0"]
    d.run((0,), is_setup=True)
    d.finish(0)
    agent.kill(0)
    d.settle()
    d.finish(0, "error")
    assert "setup cell failed on rank 0 (node 0, a-0): ValueError: x" in d.told(Notice)[-1].text


def test_a_refused_setup_cell_is_not_remembered() -> None:
    d = Driver(nnodes=1, nproc=(1,)).ready()
    assert d.run((5,), is_setup=True) == 0
    d.agents["a-0"].kill(0)
    d.settle()
    assert not d.agents["a-0"].cells
    assert not d.told(RunEnded)
