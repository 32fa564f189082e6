"""Losses: a rank's process ends, a node is unreachable, somebody replaces a rank; and how the world comes back."""

from __future__ import annotations

import pytest

from jdist.controller.model.model import FromAgent, Tick
from jdist.core.messages.membership import (
    CarriedNames,
    FormWorld,
    Heartbeat,
    Restart,
    StartStore,
    StartWorker,
    StoreDown,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from jdist.core.messages.runs import AbortRun, CellRefused, ExecuteCell, Interrupt, RankDone, RunEnded
from jdist.core.messages.status import ClusterFacts, Notice, RequestRefused, StatusReport, StatusRequest
from support.driver import Driver


def test_a_rank_that_dies_idle_is_replaced_and_the_world_formed_again() -> None:
    d = Driver().ready()
    d.agent_of(2).kill(2, "exited with code 3")
    d.settle()
    assert d.heard(StartWorker) == [StartWorker(2, 2, 1)]
    assert [n.text for n in d.told(Notice)[-2:]] == [
        "rank 2 (node 1, a-1) is lost: exited with code 3",
        "rank 2 is fresh: its namespace is lost",
    ]
    assert d.told(Notice)[-1].remedies[0].name == "2 --from 0 NAMES"
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    d.say(StatusRequest("s"))
    assert [r.fresh for r in d.told(StatusReport)[-1].ranks] == [False, False, True, False]


def test_no_source_is_suggested_where_every_rank_is_fresh() -> None:
    d = Driver().ready()
    d.say(Restart("r", (0, 1, 2)))
    d.settle()
    assert [n.remedies[0].name for n in d.told(Notice)[-3:]] == [f"{rank} --from 3 NAMES" for rank in (0, 1, 2)]
    d.say(Restart("r", (3,)))
    d.settle()
    assert d.told(Notice)[-1].text.startswith("rank 3 is fresh")
    assert not d.told(Notice)[-1].remedies


def test_a_rank_that_takes_over_names_is_not_fresh_and_runs_no_setup_cell() -> None:
    d = Driver().ready()
    d.run((0, 1, 2, 3), is_setup=True)
    for rank in range(4):
        d.finish(rank)
    cells = len(d.heard(ExecuteCell))
    agent, before = d.agent_of(2), len(d.told(Notice))
    agent.saved[2] = CarriedNames(3, (("gen", "generator"), ("a.b", "Bad: why")))
    agent.kill(2, "killed by signal 6 (SIGABRT)", hands_over=True)
    d.settle()
    assert [n.text for n in d.told(Notice)[before:]] == [
        "rank 2 (node 1, a-1) is lost: killed by signal 6 (SIGABRT)",
        "rank 2 was started again and has its names from before, except: gen (generator), a.b (Bad: why)",
    ]
    assert d.heard(FormWorld)[-1].inheriting == (2,)
    d.say(StatusRequest("s"))
    assert not any(r.fresh for r in d.told(StatusReport)[-1].ranks)
    assert len(d.heard(ExecuteCell)) == cells
    agent.kill(2)
    d.settle()
    assert d.heard(FormWorld)[-1].inheriting == ()
    assert len(d.heard(ExecuteCell)) > cells, "of one that is fresh then"


@pytest.mark.parametrize("saved", [None, CarriedNames(0, error="no memory")])
def test_a_rank_that_could_not_take_its_names_over_is_fresh(saved: CarriedNames | None) -> None:
    d = Driver().ready()
    agent = d.agent_of(2)
    if saved is not None:
        agent.saved[2] = saved
    agent.kill(2, "killed by signal 11 (SIGSEGV)", hands_over=True)
    d.settle()
    fresh = [n.text for n in d.told(Notice) if "fresh" in n.text]
    assert fresh == ["rank 2 is fresh: its namespace is lost" + ("; no memory" if saved is not None else "")]
    d.say(StatusRequest("s"))
    assert [r.fresh for r in d.told(StatusReport)[-1].ranks] == [False, False, True, False]


def test_a_rank_that_dies_in_a_run_ends_it_for_all_its_ranks() -> None:
    d = Driver().ready()
    run, other = d.run((0, 1, 2)), d.run((3,))
    d.agent_of(2).kill(2)
    d.settle()
    assert d.kinds(run) == {2: "lost", 0: "interrupted", 1: "interrupted"}
    assert d.told(RunEnded)[-1].reason == "lost"
    assert set(d.state.model.runs.running) == {other}
    assert d.state.model.generation == 1, "the next generation waits for the run in progress"
    d.finish(3)
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


@pytest.mark.parametrize("order", ["the death first", "the cell first"])
def test_a_run_that_no_rank_has_begun_when_one_dies_is_begun_once_that_is_replaced(order: str) -> None:
    d = Driver(nnodes=1, nproc=(3,)).ready()
    run = d.run((0, 1, 2))
    agent = d.agents["a-0"]
    agent.cells.clear()
    reports = [WorkerDown(1, 0, "killed by signal 9", last_run=run - 1), CellRefused(run, (0, 1, 2))]
    agent.says.extend(reports if order == "the death first" else reversed(reports))
    d.settle()
    assert [m.run for m in d.heard(ExecuteCell)] == [run, run]
    assert (d.state.model.generation, d.heard(AbortRun)) == (2, [])
    assert any("died before the cell began" in n.text for n in d.told(Notice))
    for rank in range(3):
        d.finish(rank)
    assert d.kinds(run) == dict.fromkeys(range(3), "value")


def test_a_run_that_other_nodes_have_begun_when_a_rank_had_died_is_lost() -> None:
    d = Driver().ready()
    run = d.run()
    agent = d.agents["a-1"]
    agent.cells.clear()
    agent.says.extend([CellRefused(run, (2, 3)), WorkerDown(2, 0, "killed by signal 9", last_run=run - 1)])
    d.settle()
    assert d.kinds(run) == {0: "interrupted", 1: "interrupted", 2: "lost", 3: "interrupted"}
    lost = next(done for done in d.runs[run].done if done.rank == 2)
    assert lost.error is not None
    assert lost.error.evalue == "killed by signal 9, before it began the cell"
    assert d.state.model.phase == "ready"
    assert d.heard(StartWorker) == [StartWorker(2, 2, 1)]


def test_a_rank_that_dies_again_while_it_comes_up_is_tried_again_and_others_keep_their_names() -> None:
    d = Driver(nnodes=1, nproc=(3,)).ready()
    agent = d.agents["a-0"]
    agent.starts_workers = False
    agent.kill(1)
    d.settle()
    for _ in range(2):
        assert d.state.model.phase != "failed"
        agent.kill(1, "killed by signal 9")
        d.settle()
    assert [m.incarnation for m in d.heard(StartWorker)] == [1, 2, 3]
    assert "(attempt 3 of 3)" in " ".join(n.text for n in d.told(Notice))
    agent.kill(1, "killed by signal 11")
    d.settle()
    assert d.state.model.phase == "failed"
    remedies = d.told(Notice)[-1].remedies
    assert [r.ranks for r in remedies] == ["1"], "a restart of all would cost the other ranks' names"
    agent.starts_workers = True
    d.say(Restart("r", (1,)))
    d.settle()
    assert d.state.model.phase == "ready"
    assert [rank.incarnation for rank in d.state.model.world.ranks.values()] == [0, 4, 0]
    agent.kill(1)
    d.settle()
    assert d.state.model.phase == "ready", "a process that had joined counts no more"


def test_a_rank_that_dies_while_it_is_being_halted_is_lost_and_replaced_once() -> None:
    d = Driver().ready()
    for agent in d.agents.values():
        agent.frees = False
    run = d.run((0, 2))
    d.say(Interrupt("i"))
    d.agent_of(2).kill(2)
    d.settle()
    d.finish(0, "error")
    assert d.kinds(run) == {0: "interrupted", 2: "lost"}
    assert len(d.heard(AbortRun)) == 2
    d.sleep(20.0)
    assert d.heard(StartWorker) == [StartWorker(2, 2, 1)]


def test_words_of_a_process_that_was_replaced_do_not_count() -> None:
    d = Driver(nnodes=1, nproc=(2,)).ready()
    agent = d.agents["a-0"]
    agent.starts_workers = False
    agent.kill(1)
    d.settle()
    for message in (WorkerUp(1, 99, 0), WorkerDown(1, 0, "again"), RankDone(1, 1, "value")):
        d.step(FromAgent("a-0", message))
    assert d.state.model.phase == "ready"
    assert d.state.model.generation == 1
    assert len(d.heard(StartWorker)) == 1
    d.step(FromAgent("a-0", WorkerUp(1, 99, 1)))
    d.settle()
    assert d.state.model.generation == 2


def test_restart_replaces_the_ranks_and_answers_when_the_world_stands() -> None:
    d = Driver().ready()
    run = d.run((0, 3))
    d.say(Restart("r", (3,)))
    assert d.kinds(run) == {3: "lost"}
    d.settle()
    assert d.kinds(run) == {3: "lost", 0: "interrupted"}
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert d.heard(StartWorker) == [StartWorker(3, 3, 1)]


def test_restart_of_a_rank_whose_replacement_is_on_its_way() -> None:
    d = Driver(nnodes=1, nproc=(2,)).ready()
    agent = d.agents["a-0"]
    agent.starts_workers = False
    agent.kill(1)
    d.settle()
    agent.starts_workers = True
    d.say(Restart("r", (1,)))
    d.settle()
    assert d.heard(StartWorker) == [StartWorker(1, 1, 1), StartWorker(1, 1, 2)]
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


def test_restart_while_the_world_is_formed() -> None:
    d = Driver(nnodes=1, nproc=(2,))
    d.attach()
    agent = d.add_agent("a-0", forms=False)
    d.settle()
    agent.forms = True
    d.say(Restart("r", (1,)))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert d.state.model.world.ranks[1].incarnation == 1


# ---------------------------------------------------------------- nodes


@pytest.mark.parametrize("how", ["lifeline", "silence"])
def test_a_node_that_is_gone_loses_its_ranks_and_frees_the_others(how: str) -> None:
    d = Driver(beat_timeout=3.0, node_grace=6.0).ready()
    run, alone, queued = d.run((0, 2)), d.run((1,)), d.run((0,))
    if how == "lifeline":
        d.lose(d.agents["a-1"])
    else:
        d.now += 6.0
        d.step(FromAgent("a-0", Heartbeat()))
        d.step(Tick())
        d.agents["a-1"].is_gone = True
    d.settle()
    assert d.kinds(run) == {0: "interrupted", 2: "lost"}
    assert d.kinds(alone) == {}
    assert d.kinds(queued) == {0: "interrupted"}, "what waits for a world that is gone is not left waiting"
    assert "node 1 (a-1)" in str(next(e.error for e in d.told(RankDone) if e.run == queued))
    facts = d.told(ClusterFacts)[-1]
    assert (facts.phase, facts.hostnames, facts.ready) == ("gathering", ("a-0", ""), 2)
    assert d.run((0,)) == 0
    assert "node 1 (a-1) is gone" in d.told(RequestRefused)[-1].reason
    d.finish(1)
    assert d.kinds(alone) == {1: "value"}
    assert d.state.model.generation == 1


@pytest.mark.parametrize("place", [0, 1])
def test_a_node_that_comes_back_takes_its_place_with_fresh_ranks(place: int) -> None:
    d = Driver().ready()
    d.run(is_setup=True)
    for rank in range(4):
        d.finish(rank)
    d.lose(d.agents[f"a-{place}"])
    back = d.add_agent("a-back")
    d.settle()
    (welcome,) = [m for m in back.heard if isinstance(m, Welcome)]
    assert (welcome.node_rank, welcome.first_rank) == (place, 2 * place)
    assert len(d.heard(StartStore)) == (2 if place == 0 else 1), "the store was on node 0"
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert sorted(back.cells) == [2 * place, 2 * place + 1], "they run the setup cell"
    assert [r.is_fresh for r in d.state.model.world.ranks.values()].count(True) == 2


def test_a_node_that_goes_while_the_world_is_formed() -> None:
    d = Driver(form_timeout=20.0)
    d.attach()
    d.add_agent("a-0")
    d.add_agent("a-1", forms=False)
    d.settle()
    assert d.state.model.phase == "forming"
    d.lose(d.agents["a-1"])
    d.settle()
    d.sleep(30.0)
    assert d.state.model.phase == "gathering", "waiting for a node has no deadline"
    d.add_agent("a-back")
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


def test_a_failed_world_is_tried_again_when_a_node_comes_back() -> None:
    d = Driver().ready()
    d.step(FromAgent("a-0", StoreDown("no memory")))
    assert d.state.model.phase == "failed"
    d.lose(d.agents["a-0"])
    d.add_agent("a-back")
    d.settle()
    assert d.state.model.phase == "ready"


def test_a_run_on_all_nodes_survives_no_node_and_tells_each_rank_once() -> None:
    d = Driver(nnodes=3, nproc=(2,)).ready()
    run = d.run(range(6))
    d.lose(d.agents["a-1"])
    d.lose(d.agents["a-2"])
    d.settle()
    assert d.kinds(run) == {0: "interrupted", 1: "interrupted", 2: "lost", 3: "lost", 4: "lost", 5: "lost"}
    assert d.told(RunEnded)[-1].first_failure == 2


def test_a_lost_replacement_is_still_fresh_and_still_set_up() -> None:
    d = Driver().ready()
    d.run((3,), is_setup=True)
    code = d.agent_of(3).cells[3].spec.code
    d.finish(3)
    d.agents["a-1"].starts_workers = False
    d.agents["a-1"].kill(3)
    d.settle()
    d.lose(d.agents["a-1"])
    d.add_agent("a-back")
    d.settle()
    assert d.state.model.world.ranks[3].is_fresh
    assert d.agents["a-back"].cells[3].spec.code == code


def test_no_cell_goes_to_a_rank_that_does_not_hold_the_generation() -> None:
    d = Driver().ready()
    d.agents["a-1"].starts_workers = False
    d.agents["a-1"].kill(3)
    d.settle()
    d.run((0,))
    d.sleep(5.0)
    assert not d.heard(ExecuteCell)
    assert {f.generation for f in d.heard(FormWorld)} == {1}
