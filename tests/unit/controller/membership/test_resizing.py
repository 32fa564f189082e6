"""Resizing: a node more, ranks less; the others keep their processes, and everything that names them follows."""

from __future__ import annotations

import random

import pytest

from jdist.controller.model.model import PeerGone
from jdist.core.errors import Remedy
from jdist.core.messages.base import Ack, Message
from jdist.core.messages.membership import (
    AbortAddNode,
    AddNode,
    EndWorkers,
    FormWorld,
    GroupMade,
    GroupSpec,
    MakeGroup,
    MakeMesh,
    PlaceOpened,
    Rejected,
    RemoveRanks,
    Resized,
    Shutdown,
    StartStore,
    StartWorker,
    Welcome,
    WorkerDown,
)
from jdist.core.messages.observation import Observe, Stalled
from jdist.core.messages.protocol import RankQuery, RankReply
from jdist.core.messages.runs import ExecuteCell, Output, Text
from jdist.core.messages.status import ClusterFacts, Notice, RequestRefused
from jdist.core.messages.values import BindNames, Logs
from support.driver import Agent, Driver, facts


def resized(d: Driver, client: str = "c-1") -> list[Resized]:
    return [a.body for a in d.told(RankReply, client) if isinstance(a.body, Resized)]


def refusal(d: Driver) -> str:
    return d.told(RequestRefused)[-1].reason


def add(d: Driver, name: str = "a-2", nproc: int = 0, **options: object) -> Agent:
    d.say(AddNode("add", nproc))
    agent = d.add_agent(name, **options)
    d.settle()
    return agent


def remove(d: Driver, *ranks: int) -> None:
    d.say(RemoveRanks("rem", ranks))
    d.settle()


def facts_of(d: Driver) -> ClusterFacts:
    return d.told(ClusterFacts)[-1]


def forms(d: Driver) -> dict[str, FormWorld]:
    """The last Form that each agent got."""
    found = {n: [m for m in a.heard if isinstance(m, FormWorld)] for n, a in d.agents.items()}
    return {n: f[-1] for n, f in found.items() if f}


# ---------------------------------------------------------------- growing


def test_a_node_more_gets_the_highest_ranks_and_the_world_is_formed_with_them() -> None:
    d = Driver().ready()
    agent = add(d, wanted=2)
    assert d.state.model.phase == "ready"
    assert facts_of(d).nproc_per_node == (2, 2, 2)
    assert [r.rank for r in d.state.model.world.ranks.values() if r.node_rank == 2] == [4, 5]
    assert forms(d)["a-2"].workers == tuple(range(6))
    assert {f.world_size for f in forms(d).values()} == {6}
    assert not d.heard(StartWorker), "the others keep their processes"
    assert agent.place == 2
    (answer,) = resized(d)
    assert answer == Resized(
        6, {0: 0, 1: 1, 2: 2, 3: 3}, (4, 5), ("node 2 (a-2) is new, with ranks 4-5; the world has 6",)
    )
    d.run(range(6))
    assert {r for a in d.agents.values() for r in a.cells} == set(range(6))


def test_the_place_is_told_at_once_and_the_number_of_ranks_is_as_asked() -> None:
    d = Driver().ready()
    d.say(AddNode("add", 3))
    assert [a.body for a in d.told(RankReply)] == [PlaceOpened(2)]
    d.add_agent("a-2", wanted=2, nproc=1)
    d.settle()
    assert facts_of(d).nproc_per_node == (2, 2, 3)


def test_cells_that_begin_before_the_node_comes_are_run_to_their_end_first() -> None:
    d = Driver().ready()
    d.say(AddNode("add"))
    run = d.run()
    d.add_agent("a-2")
    d.settle()
    later = d.run()
    assert len(d.runs[run].ended) == 0
    assert not resized(d)
    for rank in range(4):
        d.finish(rank)
    assert d.runs[run].ended
    assert resized(d)
    assert {c.run for c in d.heard(ExecuteCell)} == {run, later}


def test_an_agent_that_waits_for_a_cell_to_end_is_kept_or_told() -> None:
    d = Driver().ready()
    d.say(AddNode("add", timeout=30.0))
    run = d.run()
    agent = d.add_agent("a-2")
    d.agents["a-2"].liveness_name = "none yet"  # so that it beats
    d.sleep(20.0)
    assert not agent.heard
    assert "a-2" not in d.forgotten
    assert len(d.state.model.world.ranks) == 4
    d.sleep(15.0)
    assert refusal(d) == f"no agent came for node 2 within 30 s between two cells: run {run} is running"
    assert isinstance(agent.heard[-1], Rejected)
    for rank in range(4):
        d.finish(rank)
    assert d.kinds(run) == dict.fromkeys(range(4), "value")
    assert len(d.state.model.world.ranks) == 4


def test_an_agent_that_ends_while_it_waits_leaves_its_place_to_another() -> None:
    d = Driver().ready()
    d.say(AddNode("add", timeout=30.0))
    d.run((0,))
    d.add_agent("a-2")  # which is never heard again
    d.sleep(10.0)
    d.finish(0)
    assert "a-2" in d.forgotten
    assert len(d.state.model.world.ranks) == 4
    d.add_agent("a-3")
    d.settle()
    assert resized(d)[0].added == (4, 5)


def test_a_look_that_is_under_way_is_over_before_ranks_are_counted_anew() -> None:
    d = Driver(3).ready()
    run = d.run(range(6))
    for agent in d.agents.values():
        agent.answers = False
    d.agent_of(0).says.append(Stalled(0, run))
    d.settle()
    d.sleep(0.1)
    assert [a for a in d.heard(RankQuery) if isinstance(a.op, Observe)]
    for rank in range(6):
        d.finish(rank)
    assert d.runs[run].ended
    remove(d, 0)
    assert not resized(d)
    d.sleep(5.0)
    assert resized(d)


def test_a_released_agent_is_forgotten_once_it_has_ended() -> None:
    d = Driver(3).ready()
    d.agents["a-1"].ends = False
    remove(d, 2, 3)
    assert "a-1" not in d.forgotten
    d.step(PeerGone(d.agents["a-1"].liveness_name))
    assert d.forgotten == ["a-1"]
    assert d.state.model.phase == "ready"


def test_setup_cells_of_all_ranks_are_replayed_on_the_new_ones_and_later_ones_too() -> None:
    d = Driver().ready()
    for agent in d.agents.values():
        agent.finishes = True
    d.run(is_setup=True)
    d.run((0,), is_setup=True)
    d.settle()
    add(d, finishes=True)
    replayed = [m for m in d.agents["a-2"].heard if isinstance(m, ExecuteCell)]
    assert [(c.workers, c.spec.is_internal) for c in replayed] == [((4, 5), True)]
    d.agent_of(5).kill(5)
    d.settle()
    replayed = [m for m in d.agents["a-2"].heard if isinstance(m, ExecuteCell)]
    assert [c.workers for c in replayed] == [((4, 5)), (5,)]


def test_a_mesh_is_gone_in_a_world_of_another_size_and_a_group_stays() -> None:
    d = Driver().ready()
    d.say(MakeMesh("m", ("dp", "tp"), (2, 2)))
    d.settle()
    d.say(MakeGroup("g", "odd", (1, 3)))
    d.settle()
    add(d)
    assert facts_of(d).mesh is None
    assert facts_of(d).groups == {"odd": (1, 3)}
    assert resized(d)[0].notes[1] == "mesh dp=2,tp=2 is gone: it does not fit 6 ranks; make one that does"


def test_an_agent_that_nobody_waits_for_is_turned_away_as_before() -> None:
    d = Driver().ready()
    late = d.add_agent("a-2")
    assert [m for m in late.heard if isinstance(m, Rejected)]
    d.say(AddNode("add"))
    other = d.add_agent("a-3", wanted=7)
    assert [m for m in other.heard if isinstance(m, Rejected)]


def test_an_agent_that_does_not_fit_refuses_the_request_too() -> None:
    d = Driver().ready()
    agent = add(d, facts=facts("old", torch="2.6.0"))
    assert [m for m in agent.heard if isinstance(m, Rejected)]
    assert "torch 2.6.0" in refusal(d)
    assert d.state.model.phase == "ready"
    assert add(d, "a-3").place == 2


def test_a_place_to_which_nobody_comes_is_closed() -> None:
    d = Driver().ready()
    d.say(AddNode("add", timeout=30.0))
    d.sleep(31.0)
    assert refusal(d) == "no agent came for node 2 within 30 s"
    assert [m for m in d.add_agent("a-2").heard if isinstance(m, Rejected)]
    assert d.run()


def test_a_place_that_its_client_closes_is_refused_and_may_be_opened_again() -> None:
    d = Driver().ready()
    d.attach("c-2")
    d.say(AddNode("add", timeout=3000.0))
    d.say(AbortAddNode("add"), "c-2")
    assert d.state.next_wakeup() is not None, "another client cannot close it"
    d.say(AbortAddNode("of earlier"))
    d.say(AbortAddNode("add"))
    assert [m for m in d.add_agent("a-2").heard if isinstance(m, Rejected)]
    d.say(AddNode("again"), "c-2")
    d.add_agent("a-3")
    d.settle()
    assert resized(d, "c-2")


def test_an_agent_that_waits_for_a_place_that_is_closed_is_rejected() -> None:
    d = Driver().ready()
    d.say(AddNode("add", timeout=3000.0))
    d.run((0,))
    agent = d.add_agent("a-2")
    d.say(AbortAddNode("add"))
    assert isinstance(agent.heard[-1], Rejected)
    assert len(d.state.model.world.ranks) == 4


def test_one_client_at_a_time_and_its_place_goes_with_it() -> None:
    d = Driver().ready()
    liveness_name = d.attach("c-2")
    d.say(AddNode("add"), "c-2")
    d.say(AddNode("add"))
    assert "another client is adding a node" in refusal(d)
    d.step(PeerGone(liveness_name))
    add(d)
    assert resized(d)


def test_a_new_node_that_is_lost_before_it_is_formed_can_be_removed_again() -> None:
    d = Driver().ready()
    d.say(AddNode("add"))
    agent = d.add_agent("a-2", starts_workers=False)
    d.settle()
    d.lose(agent)
    d.settle()
    assert "node 2 (a-2) is gone" in refusal(d)
    assert not d.run()
    remove(d, 4, 5)
    assert d.state.model.phase == "ready"
    assert d.run()


# ---------------------------------------------------------------- shrinking


def test_the_ranks_behind_a_removed_one_close_up() -> None:
    d = Driver(3).ready()
    before = {r.rank: r.pid for r in d.state.model.world.ranks.values()}
    remove(d, 3)
    assert d.state.model.phase == "ready"
    assert facts_of(d).nproc_per_node == (2, 1, 2)
    assert [r.pid for r in d.state.model.world.ranks.values()] == [before[r] for r in (0, 1, 2, 4, 5)]
    assert {f.workers for f in forms(d).values()} == {(0, 1, 2, 4, 5)}
    assert d.heard(EndWorkers) == [EndWorkers((3,))] * 3, "all remember it, for the case that the controller dies"
    assert isinstance(d.agents["a-1"].heard[-2], EndWorkers)
    (answer,) = resized(d)
    assert answer.renumbered == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}
    assert str(answer) == "rank 3 is removed; the world has 5\nrank 4 is now rank 3\nrank 5 is now rank 4"
    assert not d.heard(StartWorker)
    run = d.run((3, 4))
    assert d.agents["a-2"].cells.keys() == {4, 5}, "agents know workers by ids that stay"
    d.finish(3)
    d.finish(4)
    assert d.kinds(run) == {3: "value", 4: "value"}


def test_a_node_without_ranks_is_released_and_the_next_take_its_place() -> None:
    d = Driver(3).ready()
    remove(d, 2, 3)
    assert d.agents["a-1"].is_gone
    assert isinstance(d.agents["a-1"].heard[-1], Shutdown)
    assert d.agents["a-2"].place == 1
    assert facts_of(d).hostnames == ("a-0", "a-2")
    assert resized(d)[0].notes == (
        "ranks 2-3 are removed; the world has 4",
        "node 1 (a-1) has no rank left and is released",
        "rank 4 is now rank 2",
        "rank 5 is now rank 3",
        "node 2 is now node 1",
    )
    d.sleep(30.0)
    assert d.state.model.phase == "ready"
    assert d.run()


def test_without_node_0_another_node_hosts_the_store() -> None:
    d = Driver().ready()
    remove(d, 0, 1)
    assert [m for m in d.agents["a-1"].heard if isinstance(m, StartStore)]
    assert d.state.model.phase == "ready"
    assert forms(d)["a-1"].workers == (2, 3)


def test_a_node_that_is_gone_can_be_left_behind() -> None:
    d = Driver(3).ready()
    d.lose(d.agents["a-1"])
    d.settle()
    assert not d.run()
    remove(d, 0)
    assert refusal(d) == "node 1 (a-1) is gone: its ranks 2-3 cannot stay; remove them as well"
    remove(d, 2, 3)
    assert d.state.model.phase == "ready"
    assert "node 1 (a-1) has no rank left and is given up" in resized(d)[0].notes
    assert d.run()


def test_a_rank_whose_place_is_empty_can_be_removed() -> None:
    d = Driver(on_death="wait").ready()
    d.agent_of(1).kill(1)
    d.settle()
    remove(d, 3)
    assert d.told(RequestRefused)[-1].remedies == (Remedy("restart", "start a fresh one", "1"),)
    remove(d, 1)
    assert d.state.model.phase == "ready"
    assert resized(d)[0].renumbered == {0: 0, 2: 1, 3: 2}


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ((), "at least one rank must be named, of ranks 0-3"),
        ((3, 9), "there is no rank 9; there are ranks 0-3"),
        ((0, 1, 2, 3), "that would leave no rank; stop the cluster instead"),
    ],
)
def test_what_cannot_be_removed(ranks: tuple[int, ...], reason: str) -> None:
    d = Driver().ready()
    remove(d, *ranks)
    assert refusal(d) == reason
    assert not d.heard(EndWorkers)


@pytest.mark.parametrize("message", [AddNode("x"), RemoveRanks("x", (3,))])
def test_not_while_a_cell_runs_or_waits(message: Message) -> None:
    d = Driver().ready()
    run = d.run((0, 1))
    d.say(message)
    doing = "add a node" if isinstance(message, AddNode) else "remove ranks"
    assert refusal(d) == f"run {run} is running on ranks 0-1: wait for its end or interrupt it, then {doing}"


@pytest.mark.parametrize("message", [AddNode("x"), RemoveRanks("x", (3,))])
def test_not_where_mpirun_has_numbered_the_ranks(message: Message) -> None:
    d = Driver(backend="mpi").ready()
    d.say(message)
    assert "mpirun has fixed the number of ranks" in refusal(d)


def test_not_while_a_value_moves() -> None:
    d = Driver().ready()
    d.agents["a-1"].answers = False
    d.say(RankQuery("put", (2, 3), BindNames((), ())))
    remove(d, 1)
    assert refusal(d) == "a value is being moved from or to ranks 2-3; remove ranks when it is there"


def test_named_groups_lose_members_and_go_with_the_last() -> None:
    d = Driver(3).ready()
    for name, ranks in {"a": (0, 1), "b": (2, 3, 4), "c": (3,), "d": (4, 5)}.items():
        d.say(MakeGroup("g", name, ranks))
        d.settle()
    d.say(MakeMesh("m", ("dp",), (6,)))
    d.settle()
    remove(d, 3)
    assert facts_of(d).groups == forms(d)["a-0"].named == {"a": (0, 1), "b": (2, 3), "d": (3, 4)}
    assert resized(d)[0].notes[3:] == (
        "group b is now ranks 2-3, 2 of 3",
        "group c is gone: none of its ranks is left",
        "group d is now ranks 3-4",
        "mesh dp=6 is gone: it does not fit 5 ranks; make one that does",
    )


def test_cells_groups_keep_their_places_in_the_replay() -> None:
    d = Driver(3).ready()
    for index, spec in enumerate([GroupSpec((3, 4), name="x"), GroupSpec((0, 5), name="y")]):
        for rank in range(6):
            d.agent_of(rank).says.append(GroupMade(rank, d.state.model.generation, index, spec, ()))
    d.settle()
    remove(d, 3)
    expected = (GroupSpec((), name="x", is_gone=True), GroupSpec((0, 4), name="y"))
    assert {f.replay for f in forms(d).values()} == {expected}
    remove(d, 1)
    assert forms(d)["a-0"].replay == (expected[0], GroupSpec((0, 3), name="y"))


def test_a_removal_waits_for_the_setup_cells_of_a_new_node() -> None:
    d = Driver().ready()
    for agent in d.agents.values():
        agent.finishes = True
    d.run(is_setup=True)
    d.settle()
    agent = add(d)
    assert set(agent.cells) == {4, 5}
    remove(d, 0)
    assert len(d.state.model.world.ranks) == 6
    for rank in (4, 5):
        agent.finish(rank)
    d.settle()
    assert resized(d)[1].world_size == 5
    assert d.state.model.phase == "ready"


def test_a_removal_is_refused_while_another_waits() -> None:
    d = Driver().ready()
    for agent in d.agents.values():
        agent.finishes = True
    d.run(is_setup=True)
    d.settle()
    agent = add(d)
    remove(d, 0)
    remove(d, 1)
    assert refusal(d) == "a removal of ranks is waiting and will renumber the others; remove ranks after it"
    for rank in (4, 5):
        agent.finish(rank)
    d.settle()
    assert resized(d)[1].world_size == 5, "only the first has been done"
    assert d.state.model.phase == "ready"


def test_setup_cells_follow_their_ranks() -> None:
    d = Driver(3).ready()
    for agent in d.agents.values():
        agent.finishes = True
    for ranks in ((3,), (4,), range(6)):
        d.run(ranks, is_setup=True)
        d.settle()
    remove(d, 3)
    before = len(d.agents["a-2"].heard)
    d.agent_of(3).kill(4)
    d.settle()
    replayed = [m for m in d.agents["a-2"].heard[before:] if isinstance(m, ExecuteCell)]
    assert [c.workers for c in replayed] == [(4,), (4,)], "what was run on the old rank 4, and on all"


# ---------------------------------------------------------------- worker ids


def test_what_an_agent_sent_before_a_removal_is_about_the_same_workers() -> None:
    d = Driver(3).ready()
    agent = d.agents["a-2"]
    d.say(RemoveRanks("rem", (3,)))
    agent.says.appendleft(WorkerDown(4, 0, "killed by signal 9"))
    agent.says.appendleft(Output(0, (Text((4, 5), "stdout", "late words\n"),)))
    d.deliver(agent)
    assert [r.last_line for r in d.state.model.world.ranks.values()] == ["", "", "", "late words", "late words"]
    d.deliver(agent)
    assert [r.rank for r in d.state.model.world.ranks.values() if r.is_fresh] == [3], "old rank 4"
    assert d.heard(StartWorker) == [StartWorker(4, 3, 1)]
    d.settle()
    assert d.state.model.phase == "ready"


def test_two_removals_before_the_first_is_heard_of() -> None:
    d = Driver(3).ready()
    for agent in d.agents.values():
        agent.is_unreachable = True
    d.say(RemoveRanks("rem", (0,)))
    d.say(RemoveRanks("rem", (0,)))
    for agent in d.agents.values():
        agent.is_unreachable = False
    d.agents["a-2"].says.appendleft(Output(0, (Text((2, 5), "stdout", "x\n"),)))
    d.settle()
    assert d.state.model.world.ranks[3].last_line == "x", "worker 5 was rank 5, then 4, and is 3"
    assert d.state.model.phase == "ready"
    assert facts_of(d).nproc_per_node == (2, 2)


def test_a_question_is_answered_under_the_number_that_was_asked() -> None:
    d = Driver(3).ready()
    agent = d.agents["a-2"]
    agent.answers = False
    d.agents["a-1"].answers = False
    d.say(RankQuery("q", (3, 5), Logs(3)))
    remove(d, 3)
    assert "rank 3 (node 1, a-1) has been removed" in str(d.told(RankReply)[-2].body)
    agent.says.append(RankReply("q", 5, Ack()))
    d.settle()
    assert d.told(RankReply)[-1] == RankReply("q", 5, Ack())


def test_other_clients_are_told_at_once() -> None:
    d = Driver(3).ready()
    d.attach("c-2")
    remove(d, 4)
    assert "rank 5 is now rank 4" in d.told(Notice, "c-2")[-1].text
    assert not [n for n in d.told(Notice) if "is now rank" in n.text], "it has the answer"


def test_an_agent_that_was_given_up_and_removed_gets_no_place_that_is_anothers() -> None:
    d = Driver(3).ready()
    agent = d.agents["a-1"]
    agent.is_unreachable = True
    d.sleep(30.0)
    remove(d, 2, 3)
    d.greet(agent)
    assert [m for m in agent.heard if isinstance(m, Rejected)]
    assert d.agents["a-2"].place == 1


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_sizes_ends_in_a_world_that_stands(seed: int) -> None:
    """Nodes come, ranks go and die, cells run; numbers stay dense and processes where they were."""
    rng = random.Random(seed)
    d = Driver(2, (rng.randint(1, 3),)).ready()
    for agent in d.agents.values():
        agent.finishes = True
    for step in range(12):
        size = len(d.state.model.world.ranks)
        match rng.choice(["add", "remove", "kill", "run"]):
            case "add" if size < 10:
                add(d, f"n-{step}", rng.randint(0, 3), finishes=True)
            case "remove" if size > 1:
                pids = {r.rank: (r.pid, r.incarnation) for r in d.state.model.world.ranks.values()}
                gone = rng.sample(range(size), rng.randint(1, min(3, size - 1)))
                remove(d, *gone)
                kept = [pids[r] for r in range(size) if r not in gone]
                assert [(r.pid, r.incarnation) for r in d.state.model.world.ranks.values()] == kept
            case "kill":
                rank = rng.randrange(size)
                d.agent_of(rank).kill(d.worker(rank))
                d.settle()
            case _:
                run = d.run(range(size), is_setup=rng.random() < 0.3)
                d.settle()
                assert set(d.kinds(run).values()) == {"value"}
        world = d.state.model.world
        assert d.state.model.phase == "ready", d.state.model.reason
        assert list(world.ranks) == list(range(world.topology.world_size))
        assert [r.node_rank for r in world.ranks.values()] == [world.topology.node_rank(r) for r in world.ranks]
        assert {r.generation for r in world.ranks.values()} == {d.state.model.generation}
        for n, node in world.nodes.items():
            assert node.node_rank == n
            assert sorted(d.agents[node.agent].incarnations) == [d.worker(r) for r in world.topology.ranks_on(n)]
    assert d.heard(Welcome)
