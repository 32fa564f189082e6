"""Adoption: a controller that was started again takes over the world as its agents describe it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from jdist.agent.recovery_ledger import RecoveryLedger
from jdist.controller.model.model import FromAgent, Send
from jdist.core.errors import Remedy
from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.debug import FollowRun, RankPaused, RanksResumed, Resume, ResumeRanks, RunFollowed
from jdist.core.messages.membership import (
    AgentHello,
    EndWorkers,
    FormWorld,
    GroupSpec,
    HeldGeneration,
    HeldWorker,
    Owner,
    Rejected,
    RemoveRanks,
    Shutdown,
    StartStore,
    StartWorker,
    Welcome,
    WorkerUp,
    WorldFormed,
)
from jdist.core.messages.observation import StackFrame
from jdist.core.messages.runs import (
    AbortRun,
    CellSpec,
    ExecuteCell,
    InputRequest,
    RankDone,
    ReadRun,
    RunEnded,
    RunRecord,
    RunStarted,
    Waiter,
)
from jdist.core.messages.saving import KeepAutosave, PrepareSave, SaveOptions
from jdist.core.messages.status import ClusterFacts, Notice, StatusReport, StatusRequest
from support.driver import VERSION, Agent, Driver, facts

STORE = ("10.0.0.1", 4000)


def form(generation: int = 5, **changes: Any) -> FormWorld:
    return FormWorld(
        generation=generation,
        workers=changes.get("workers", (0, 1, 2, 3)),
        backend="gloo",
        init_method="env://",
        store_host="",
        store_port=0,
        world_size=4,
        nproc_per_node=(2, 2),
        timeout=1.0,
        replay=(),
        named=changes.get("named", {}),
        mesh=changes.get("mesh"),
        cut=(),
    )


def held(
    node: int, *, runs: tuple[int, int] = (0, 0), generation: int = 5, last: FormWorld | None = None, **other: Any
) -> HeldGeneration:
    ranks = tuple(
        HeldWorker(r, 0, 1000 + r, is_up=True, generation=generation, run=run, listeners=(("h", 5000 + r),))
        for r, run in zip((2 * node, 2 * node + 1), runs, strict=True)
    )
    return HeldGeneration(
        other.get("ranks", ranks),
        last or form(),
        STORE if node == 0 else None,
        other.get("last_run", 9),
        other.get("setup", ()),
        other.get("ended", ()),
    )


class Again(Driver):
    """A controller that was started again, with a client."""

    def __init__(self, owners: dict[str, Owner] | None = None, **settings: Any):
        super().__init__(**settings)
        self.state.take_over(owners or dict.fromkeys([f"a-{n}" for n in range(8)], Owner(tuple(range(64)))))
        self.attach()

    def back(self, node: int, what: HeldGeneration | None) -> None:
        """The node's agent comes back with what it holds."""
        agent = self.add_agent(f"a-{node}", hello=False)
        agent.incarnations = {each.worker: each.incarnation for each in what.workers if each.pid} if what else {}
        self.step(FromAgent(agent.name, AgentHello(PROTOCOL, VERSION, facts(agent.name), 0, node, what)))


def test_only_the_agent_that_had_workers_can_come_back_with_them() -> None:
    """Another, which has enrolled as any node may, says that it holds node 0's: they stay where they are."""
    owners = {"a-0": Owner((0, 1)), "a-1": Owner((2, 3))}
    d = Again(owners)
    d.back(1, held(1))
    d.step(FromAgent(d.add_agent("a-5", hello=False).name, AgentHello(PROTOCOL, VERSION, facts("h"), 0, 0, held(0))))
    assert d.heard(Rejected)
    assert d.state.model.phase == "gathering"
    assert d.state.owners() == owners, "written down for a controller that follows on this one"
    d.back(0, held(0))
    assert d.state.model.phase == "ready"
    assert d.state.model.world.nodes[0].agent == "a-0"
    assert d.state.owners() == owners


def test_a_node_that_a_login_carries_is_waited_for_as_long_as_its_agent_waits() -> None:
    """Its login may pause for a minute; the nodes that need none are waited for no longer than otherwise."""
    owners = {"a-0": Owner((0, 1)), "a-1": Owner((2, 3), is_carried=True)}
    d = Again(owners, node_grace=15.0)
    d.back(0, held(0))
    number = d.run()
    text = "the cell waits: ranks 2-3 have not rejoined the restarted controller yet"
    assert d.told(Notice)[-1] == Notice(text, number, remedies=(Remedy("remove", "go on without it", "2-3"),))
    d.sleep(590)
    assert d.state.model.phase == "gathering"
    assert d.state.owners() == owners
    d.back(1, held(1))
    assert d.state.model.phase == "ready"
    assert not d.heard(StartWorker), "no rank is made anew"
    assert {cell.run for cell in d.heard(ExecuteCell)} == {number}

    other = Again(owners, node_grace=15.0)
    other.back(1, held(1))
    number = other.run()
    other.sleep(16)
    assert "1 of 2 nodes are back" in other.told(Notice)[-1].text
    refused = [done.error.evalue for done in other.told(RankDone) if done.run == number and done.error]
    assert refused == ["the cell was not run: node 0 (not back yet) is gone"] * 4


def test_ranks_that_are_awaited_can_be_removed_and_then_nothing_is_awaited() -> None:
    d = Again({"a-0": Owner((0, 1)), "a-1": Owner((2, 3), is_carried=True)})
    d.back(0, held(0))
    d.say(RemoveRanks("q", (2, 3)))
    d.settle()
    d.sleep(1)
    number = d.run((0,))
    d.settle()
    d.step(FromAgent("a-0", RankDone(number, 0, "value")))
    assert [ended.run for ended in d.told(RunEnded)] == [number]


def test_a_process_that_starts_once_the_one_before_has_handed_its_names_over_is_waited_for() -> None:
    """A second request for one would have the agent end the handover."""
    d = Again()
    leaving = HeldWorker(2, 1, 0, is_up=False, is_awaited=True)
    d.back(1, held(1, ranks=(leaving, held(1).workers[1])))
    d.back(0, held(0))
    assert not d.heard(StartWorker)
    assert not d.told(Notice) or "fresh" not in d.told(Notice)[-1].text
    rank = d.state.model.world.ranks[2]
    assert (rank.lifecycle.phase, rank.incarnation) == ("starting", 1)


def test_an_idle_world_goes_on_as_it_is() -> None:
    d = Again()
    d.back(1, held(1, last=form(named={"g": (0, 1)})))
    assert d.state.model.phase == "gathering"
    number = d.run((2,))
    assert (number, d.heard(ExecuteCell)) == (10, []), "numbers of runs go on, and it waits for every node"
    d.back(0, held(0, last=form(named={"g": (0, 1)})))
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 5)
    assert [tuple(each.incarnation for each in w.workers) for w in d.heard(Welcome)] == [(), ()]
    assert not d.heard(FormWorld) + d.heard(StartStore) + d.heard(StartWorker) + d.heard(AbortRun)
    assert "2 of 2 nodes are back" in d.told(Notice)[-1].text
    assert [cell.run for cell in d.heard(ExecuteCell)] == [number]
    d.say(StatusRequest("s"))
    found = d.told(StatusReport)[-1]
    assert [(r.pid, r.fresh) for r in found.ranks] == [(1000 + r, False) for r in range(4)]
    assert found.facts.groups == {"g": (0, 1)}


def test_automatic_saves_go_on_also_in_a_run_that_goes_on() -> None:
    d, kept = Again(), KeepAutosave(SaveOptions("/d"), 60.0, 25.0)
    for node in (0, 1):
        d.back(node, msgspec.structs.replace(held(node, runs=(7, 7)), autosave=kept))
    d.sleep(59)
    assert not d.heard(PrepareSave)
    d.sleep(2)
    assert [asked.run for asked in d.heard(PrepareSave)] == [7, 7]


def test_a_client_goes_on_with_a_run_of_which_some_ranks_have_ended_meanwhile() -> None:
    """Their ends come with their nodes' hellos; the run is not over before all nodes are back."""
    d = Again()
    d.back(0, held(0, runs=(7, 7)))
    for worker in (0, 1):
        d.step(FromAgent("a-0", RankDone(7, worker, "value")))
    d.say(ReadRun("early", 7, Waiter(True, 2.0)))
    d.back(1, held(1, runs=(7, 7)))
    d.say(ReadRun("r", 7, Waiter(True, 2.0)))
    early, found = d.told(RunRecord)
    assert (early.ranks, found.ranks) == ((0, 1), (0, 1, 2, 3))
    assert [m for m in found.messages if isinstance(m, RankDone | RunEnded)] == [
        RankDone(7, 0, "value"),
        RankDone(7, 1, "value"),
    ]
    d.step(FromAgent("a-1", RankDone(7, 2, "value")))
    assert [done.rank for done in d.told(RankDone)].count(2) == 1, "although the client has asked twice"


def test_a_run_that_goes_on_has_its_client_its_start_and_its_deadline_from_there() -> None:
    d = Again()
    for node in (0, 1):
        d.back(node, held(node, runs=(7, 7)))
    d.attach("c-2")
    d.say(ReadRun("other", 7, Waiter(False, 0.0)), "c-2")
    d.say(ReadRun("r", 7, Waiter(True, 20.0, 30.0)))
    d.step(FromAgent("a-0", InputRequest(7, 0, "name? ", False)))
    assert len(d.told(InputRequest)) == 1
    assert not d.heard(AbortRun), "its client is there to answer"
    d.say(ReadRun("again", 7, Waiter(False, 0.0)))
    assert d.told(RunRecord)[-1].seconds >= 20.0
    d.sleep(31)
    assert d.heard(AbortRun), "its time is up"


def test_clients_that_attach_soon_afterwards_are_told_what_goes_on() -> None:
    d = Again()
    d.back(0, held(0, runs=(7, 7)))
    d.back(1, held(1))
    told = d.told(Notice)[-1]
    assert "run 7 goes on" in told.text
    d.attach("c-2")
    assert d.told(Notice, "c-2") == [told]
    d.now += 100
    d.attach("c-3")
    assert not d.told(Notice, "c-3")


def test_a_world_that_has_got_another_size_is_taken_over_in_that() -> None:
    d = Again()
    last = msgspec.structs.replace(form(), nproc_per_node=(2, 1, 1))
    for node, numbers in enumerate([(0, 1), (2,), (3,)]):
        ranks = tuple(HeldWorker(r, 0, 1000 + r, is_up=True, generation=5) for r in numbers)
        d.back(node, held(node, ranks=ranks, last=last))
    assert d.state.model.phase == "ready"
    assert d.state.model.world.topology.nproc_per_node == (2, 1, 1)
    assert not d.heard(FormWorld)


def test_a_rank_that_has_the_names_of_the_process_before_it_is_not_fresh() -> None:
    d = Again()
    replaced = (
        HeldWorker(0, 1, 1000, is_up=True, generation=5),
        HeldWorker(1, 1, 1001, is_up=True, generation=5, is_fresh=True),
    )
    d.back(0, held(0, ranks=replaced))
    d.back(1, held(1))
    assert [d.state.model.world.ranks[r].is_fresh for r in range(4)] == [False, True, False, False]


def without_rank_1() -> tuple[HeldGeneration, HeldGeneration]:
    """What two nodes hold when only the first one has the generation that was begun after rank 1 had been removed."""
    named = {"g": (1, 2)}
    last = msgspec.structs.replace(form(6, named=named), nproc_per_node=(1, 2), workers=(0, 2, 3))
    group = GroupSpec((1, 2))
    first = (HeldWorker(0, 0, 1000, is_up=True, generation=6, groups=(group,)),)
    second = tuple(HeldWorker(r, 0, 1000 + r, is_up=True, generation=5, groups=(GroupSpec((2, 3)),)) for r in (2, 3))
    behind = held(1, ranks=second, last=form(5, named={"g": (1, 2, 3)}), ended=(1,))
    return held(0, ranks=first, last=last), behind


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_node_that_has_not_heard_of_the_size_keeps_its_ranks(order: tuple[int, int]) -> None:
    d = Again()
    nodes = without_rank_1()
    for node in order:
        d.back(node, nodes[node])
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 7)
    assert [r.is_fresh for r in d.state.model.world.ranks.values()] == [False] * 3
    assert not d.heard(StartWorker)
    assert {(f.workers, f.nproc_per_node, f.replay) for f in d.heard(FormWorld)} == {
        ((0, 2, 3), (1, 2), (GroupSpec((1, 2)),))
    }
    assert d.told(ClusterFacts)[-1].groups == {"g": (1, 2)}


def test_a_node_that_was_released_is_not_there_again_when_the_next_generation_is_known() -> None:
    d = Again()
    d.back(1, held(1))  # it has not heard that it was released
    last = msgspec.structs.replace(form(6), nproc_per_node=(2,), workers=(0, 1))
    d.back(0, held(0, generation=6, last=last))
    assert isinstance(d.agents["a-1"].heard[-1], Shutdown)
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert not d.heard(FormWorld)
    d.back(2, held(1))
    assert isinstance(d.agents["a-2"].heard[-1], Rejected)


def test_a_rank_whose_removal_was_not_finished_stays_removed() -> None:
    """Its worker has been ended, and the controller died before it had the world formed without it."""
    d = Again()
    ledger = RecoveryLedger()
    for worker in (2, 3):
        ledger.record_start(StartWorker(worker, worker, 0))
        ledger.record(WorldFormed(worker, 5, "cpu", ()))
    ledger.record(ExecuteCell(8, (2, 3), CellSpec("of both", is_setup=True)))
    ledger.record(form(named={"g": (1, 2, 3)}))
    ledger.record_end((2,))
    found = ledger.describe({}, None)
    assert [(each.worker, each.generation) for each in found.workers] == [(3, 5)]
    assert found.setup == ((8, "of both", (2, 3)),)
    assert found.ended == (2,)
    d.back(0, held(0, last=form(named={"g": (1, 2, 3)})))
    d.back(1, msgspec.structs.replace(found, workers=(HeldWorker(3, 0, 1003, is_up=True, generation=5),)))
    d.settle()
    assert not d.heard(StartWorker)
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert [(r.worker, r.is_fresh) for r in d.state.model.world.ranks.values()] == [(0, False), (1, False), (3, False)]
    assert {(f.workers, f.nproc_per_node) for f in d.heard(FormWorld)} == {((0, 1, 3), (2, 1))}
    assert d.told(ClusterFacts)[-1].groups == {"g": (1, 2)}
    (said,) = [n.text for n in d.told(Notice) if "removed" in n.text]
    assert said.splitlines() == [
        "rank 2 is removed; the world has 3",
        "rank 3 is now rank 2",
        "group g is now ranks 1-2, 2 of 3",
    ]


def test_what_was_removed_is_forgotten_with_the_next_generation() -> None:
    ledger = RecoveryLedger()
    ledger.record(form())
    ledger.record_end((0, 2))
    ledger.record(form(6, workers=(1, 3)))
    assert ledger.describe({}, None).ended == ()


def test_a_node_whose_removal_was_not_finished_is_not_awaited() -> None:
    d = Again()
    d.back(1, held(1, ended=(0, 1)))
    assert d.heard(StartStore), "the store was on the node that is gone"
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert [(r.worker, r.node_rank, r.is_fresh) for r in d.state.model.world.ranks.values()] == [
        (2, 0, False),
        (3, 0, False),
    ]
    assert d.agents["a-1"].place == 0
    d.back(0, held(0))
    assert isinstance(d.agents["a-0"].heard[-1], Rejected)


def test_a_removed_node_that_has_not_heard_of_it_is_released_and_so_is_the_rank_of_one_that_stays() -> None:
    d = Again()
    shape = msgspec.structs.replace(form(), nproc_per_node=(2, 2, 2), workers=tuple(range(6)))
    d.back(2, held(2, last=shape, ended=(0, 1, 2)))
    d.back(0, held(0, last=shape))
    assert not d.heard(EndWorkers) + d.heard(Shutdown), "the world is as it was until all are back"
    d.back(1, held(1, last=shape))
    d.settle()
    assert d.agents["a-0"].is_gone
    assert {e.workers for e in d.heard(EndWorkers)} == {(0, 1, 2)}
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert [r.worker for r in d.state.model.world.ranks.values()] == [3, 4, 5]
    assert {f.nproc_per_node for f in d.heard(FormWorld)} == {(1, 2)}


def test_a_node_that_comes_late_has_the_place_to_which_it_moved() -> None:
    d = Again(node_grace=15.0)
    shape = msgspec.structs.replace(form(), nproc_per_node=(2, 2, 2), workers=tuple(range(6)))
    d.back(1, held(1, last=shape, ended=(0, 1)))
    d.sleep(16.0)
    assert d.state.model.world.nnodes == 2
    d.back(2, held(2, last=shape, ended=(0, 1)))
    d.settle()
    assert d.agents["a-2"].place == 1
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert [(r.worker, r.is_fresh) for r in d.state.model.world.ranks.values()] == [(n, False) for n in (2, 3, 4, 5)]


def test_a_removal_beside_a_cell_that_runs_is_not_believed() -> None:
    """None was running when ranks were removed: fresh processes take their places."""
    d = Again()
    d.back(0, held(0, runs=(7, 0), ended=(2,)))
    d.back(1, held(1, ranks=(HeldWorker(3, 0, 1003, is_up=True, generation=5),), ended=(2,)))
    d.step(FromAgent("a-0", RankDone(7, 0, "error")))
    d.settle()
    assert d.heard(StartWorker) == [StartWorker(2, 2, 1)]
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert [r.is_fresh for r in d.state.model.world.ranks.values()] == [False, False, True, False]


def test_a_place_taken_by_another_node_is_not_removed_again() -> None:
    d = Again()
    shape = msgspec.structs.replace(form(), nproc_per_node=(2, 2, 2), workers=tuple(range(6)))
    d.back(0, held(0, last=shape, ended=(4, 5)))
    d.add_agent("a-new", wanted=2)
    d.settle()
    d.back(1, held(1, last=shape))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert [r.is_fresh for r in d.state.model.world.ranks.values()] == [False] * 4 + [True] * 2


def test_a_replay_adds_to_the_ranks_that_a_setup_cell_was_run_on() -> None:
    ledger = RecoveryLedger()
    for run, ranks, is_internal in ((1, (0, 1), False), (2, (1,), True), (3, (2,), True)):
        ledger.record(ExecuteCell(run, ranks, CellSpec("told", is_setup=True, is_internal=is_internal)))
    assert ledger.describe({}, None).setup == ((1, "told", (0, 1, 2)),)
    ledger.record(ExecuteCell(4, (0,), CellSpec("told", is_setup=True)))
    assert ledger.describe({}, None).setup == ((4, "told", (0,)),)


def running(runs: dict[int, int], **changes: Any) -> tuple[HeldWorker, ...]:
    """Workers of a node, each in its run."""
    return tuple(
        HeldWorker(r, 0, 1000 + r, is_up=True, generation=5, run=run, listeners=(("h", 5000 + r),), **changes)
        for r, run in runs.items()
    )


def test_what_was_being_interrupted_is_so_again_once_all_are_back_and_the_world_formed_again() -> None:
    d = Again()
    d.back(0, held(0, ranks=running({0: 7, 1: 0})))
    d.step(FromAgent("a-0", RankDone(7, 0, "value")))
    assert not d.heard(AbortRun)
    d.back(1, held(1, ranks=running({2: 7}, is_aborted=True) + running({3: 8})))
    (halt,) = d.heard(AbortRun)
    assert (halt.run, halt.workers) == (7, (2,))
    assert halt.listeners == tuple(("h", 5000 + r) for r in range(4))
    d.step(FromAgent("a-1", RankDone(7, 2, "error")))
    assert (d.state.model.phase, set(d.state.model.runs.running)) == ("gathering", {8})
    d.step(FromAgent("a-1", RankDone(8, 3, "value")))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert not d.heard(StartWorker)


def test_a_rank_that_does_not_stop_is_replaced_then_too() -> None:
    d = Again(interrupt_grace=1.0)
    d.back(0, held(0, ranks=running({0: 7, 1: 0}, is_aborted=True)))
    d.back(1, held(1))
    d.sleep(2.0)
    assert d.heard(StartWorker) == [StartWorker(0, 0, 1, keeps_names=True)]
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)


def test_what_runs_is_interrupted_where_a_node_does_not_come_back() -> None:
    d = Again(node_grace=5.0)
    d.back(0, held(0, runs=(7, 7)))
    d.sleep(6.0)
    assert [(h.run, h.workers) for h in d.heard(AbortRun)] == [(7, (0, 1))]


def test_what_runs_or_is_paused_goes_on_and_clients_follow_it() -> None:
    d = Again()
    ledger = RecoveryLedger()
    for worker in (2, 3):
        ledger.record_start(StartWorker(worker, worker, 0))
        ledger.record(WorldFormed(worker, 5, "cpu", ()))
    ledger.record(form())
    ledger.record(ExecuteCell(7, (2, 3), CellSpec("of both")))
    at = StackFrame("train_step", "", 8)
    for resumes in (0, 1):
        for worker in (2, 3):
            ledger.record(RankPaused(7, worker, "step", at, resumes))
        ledger.record(ResumeRanks(7, (2, 3), "next"))
    ledger.record(RankPaused(7, 2, "step", at, 1))  # it has crossed the last one
    ledger.record(RankPaused(7, 3, "step", at, 2))
    ledger.record(ExecuteCell(8, (3,), CellSpec("inner"), in_run=7))
    found = ledger.describe({}, None)
    assert [(w.run, w.paused is not None, w.resumes, w.inner_run) for w in found.workers] == [
        (7, False, 2, 0),
        (7, True, 2, 8),
    ]
    workers = tuple(msgspec.structs.replace(w, pid=1000 + w.worker, is_up=True) for w in found.workers)
    d.back(1, msgspec.structs.replace(found, workers=workers))
    d.back(0, held(0, runs=(7, 0)))
    d.say(StatusRequest("s"))
    (report,) = d.told(StatusReport)
    assert (report.facts.phase, report.facts.paused) == ("ready", (3,))
    assert [run[:3] for run in report.runs] == [(7, "paused", (0, 2, 3)), (8, "running", (3,))]
    assert [(row.run, row.state, row.paused is not None) for row in report.ranks] == [
        (7, "running", False),
        (0, "idle", False),
        (7, "running", False),
        (8, "running", True),
    ]
    assert d.told(Notice)[-1].text.endswith("variables are kept; runs 7, 8 go on")
    d.say(FollowRun("f", 7))
    (followed,) = d.told(RunFollowed)
    assert (followed.code, followed.pending, [p.rank for p in followed.paused]) == ("", (0, 2, 3), [3])
    d.step(FromAgent("a-1", RankDone(8, 3, "value")))
    d.say(Resume("go"))
    assert d.told(RanksResumed) == [RanksResumed(7, (3,))]
    assert d.heard(ResumeRanks) == [ResumeRanks(7, (3,))]
    for rank in (0, 2, 3):
        d.step(FromAgent(f"a-{rank // 2}", RankDone(7, rank, "value")))
    assert [e.run for e in d.told(RunEnded)] == [7]
    assert not d.heard(AbortRun) + d.heard(FormWorld)
    d.say(ReadRun("r", 7))
    (record,) = d.told(RunRecord)
    assert record.ranks == (0, 2, 3)
    kinds = [type(message) for message in record.messages]
    assert kinds[:2] == [Notice, RunStarted], "what was written before the takeover is not known"
    assert kinds[-1] is RunEnded


def test_a_world_that_not_all_hold_is_formed_again() -> None:
    d = Again()
    d.back(0, held(0, generation=6, last=form(6)))
    d.back(1, held(1, generation=5, last=form(5)))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 7)
    assert not d.heard(StartWorker)


def test_ranks_that_died_or_were_being_started_meanwhile() -> None:
    d = Again()
    ranks = (HeldWorker(2, 3, 0, is_up=False, is_fresh=True), HeldWorker(3, 1, 77, is_up=False, is_fresh=True))
    d.back(0, held(0))
    d.back(1, held(1, ranks=ranks))
    assert d.heard(StartWorker) == [StartWorker(2, 2, 4)]
    assert d.state.model.phase == "gathering"
    d.step(FromAgent("a-1", WorkerUp(3, 77, 1)))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert [r.is_fresh for r in d.state.model.world.ranks.values()] == [False, False, True, True]


def test_setup_cells_are_remembered_in_their_order() -> None:
    d = Again()
    d.back(0, held(0, setup=((3, "second", (0,)), (2, "first", (0, 1)))))
    d.back(1, held(1, setup=((2, "first", (2, 3)),)))
    d.agents["a-0"].finishes = d.agents["a-1"].finishes = True
    for name, rank in (("a-0", 0), ("a-1", 2)):
        d.agents[name].kill(rank)
    d.settle()
    assert [(c.spec.code, c.workers) for c in d.heard(ExecuteCell)] == [
        ("first", (0,)),
        ("second", (0,)),
        ("first", (2,)),
    ]


def test_a_node_that_does_not_come_back_holds_nobody_up() -> None:
    d = Again(node_grace=15.0)
    d.back(0, held(0, runs=(7, 7)))
    d.sleep(14.0)
    assert not d.heard(AbortRun)
    d.sleep(2.0)
    assert {h.workers for h in d.heard(AbortRun)} == {(0, 1)}
    d.step(FromAgent("a-0", RankDone(7, 0, "error")))
    d.step(FromAgent("a-0", RankDone(7, 1, "error")))
    assert d.state.model.phase == "gathering"
    assert d.run((0,)) == 0
    d.back(1, held(1))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6), "it comes late, and with its ranks"
    assert not d.heard(StartWorker)


def test_a_newcomer_may_take_the_place_of_a_node_that_is_awaited() -> None:
    d = Again()
    d.back(0, held(0))
    d.add_agent("a-new")
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 6)
    assert [r.is_fresh for r in d.state.model.world.ranks.values()] == [False, False, True, True]
    d.back(1, held(1))
    assert isinstance(d.agents["a-1"].heard[-1], Rejected)


def test_an_agent_whose_world_was_never_formed_starts_afresh() -> None:
    d = Again()
    unformed = HeldGeneration(
        (HeldWorker(0, 0, 1000, is_up=True), HeldWorker(1, 0, 1001, is_up=True)), None, None, 0, ()
    )
    d.back(0, unformed)
    d.back(1, None)
    d.settle()
    assert [tuple(each.incarnation for each in w.workers) for w in d.heard(Welcome)] == [(1, 1), (0, 0)]
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 1)


def test_groups_that_cells_made_are_made_again() -> None:
    d = Again()
    spec = GroupSpec((0, 2))
    for node in range(2):
        ranks = tuple(
            HeldWorker(r, 0, 9, is_up=True, generation=5, groups=(spec,), run=4 if r == 3 else 0, is_aborted=r == 3)
            for r in (2 * node, 2 * node + 1)
        )
        d.back(node, held(node, ranks=ranks))
    d.step(FromAgent("a-1", RankDone(4, 3, "error")))
    d.settle()
    assert {f.replay for f in d.heard(FormWorld)} == {(spec,)}


class Recorded(Driver):
    """A controller whose agents keep ledgers, and that may die before they have all that it sent."""

    def __init__(self, nnodes: int, nproc: int):
        super().__init__(nnodes, (nproc,))
        self.ledgers = {f"a-{n}": RecoveryLedger() for n in range(nnodes)}
        self.arrives: dict[str, int] = {}
        """How many of its next messages each agent gets; all where none is given."""

    def _carry(self, instruction: Send) -> None:
        peer, message = instruction.peer, instruction.message
        if peer in self.ledgers:
            if self.arrives.get(peer) == 0:
                return
            if peer in self.arrives:
                self.arrives[peer] -= 1
            if isinstance(message, Welcome):
                for wanted in message.workers:
                    self.ledgers[peer].record_start(wanted)
            elif isinstance(message, EndWorkers):
                self.ledgers[peer].record_end(message.workers)
            else:
                self.ledgers[peer].record(message)
        super()._carry(instruction)

    def deliver(self, agent: Agent) -> list[Message]:
        self.ledgers[agent.name].record(agent.says[0])
        return super().deliver(agent)

    def held(self, agent: Agent) -> HeldGeneration:
        """What the agent describes, whose workers are all up."""
        described = self.ledgers[agent.name].describe({}, STORE if agent.place == 0 else None)
        workers = tuple(msgspec.structs.replace(w, pid=1000 + w.worker, is_up=True) for w in described.workers)
        return msgspec.structs.replace(described, workers=workers)


@pytest.mark.parametrize("seed", range(60))
def test_a_removal_is_kept_whatever_part_of_it_has_reached_the_agents(seed: int) -> None:
    chance = random.Random(seed)
    nnodes, nproc = chance.randrange(2, 5), chance.randrange(1, 4)
    first = Recorded(nnodes, nproc)
    first.ready()
    ranks = range(nnodes * nproc)
    first.arrives = {name: chance.randrange(4) for name in first.agents}
    first.say(RemoveRanks("rem", tuple(chance.sample(ranks, chance.randrange(1, len(ranks))))))
    for agent in list(first.agents.values()):
        if agent.says and chance.random() < 0.5:
            first.deliver(agent)
    left = [agent for agent in first.agents.values() if not agent.is_gone]
    found = [first.held(agent) for agent in left]
    newest = max((each.form for each in found if each.form is not None), key=lambda form: form.generation)
    ended = {w for each in found if each.form == newest for w in each.ended}
    expected = [w for w in newest.workers if w not in ended]

    d = Again(nnodes=nnodes)
    for agent, what in chance.sample(list(zip(left, found, strict=True)), len(left)):
        d.back(int(agent.name.removeprefix("a-")), what)
        d.settle()
    assert [rank.worker for rank in d.state.model.world.ranks.values()] == expected
    if {w for agent in left for w in agent.incarnations} >= set(expected):
        assert d.state.model.phase == "ready"
        assert not d.heard(StartWorker)
        assert not any(rank.is_fresh for rank in d.state.model.world.ranks.values())
