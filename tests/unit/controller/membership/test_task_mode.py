"""Counting: as many tasks as nodes are nodes, as many as ranks are ranks, any other number fits neither."""

from __future__ import annotations

import msgspec
import pytest

from jdist.controller.model.model import FromAgent
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.membership import (
    AgentHello,
    FormWorld,
    HeldGeneration,
    HeldWorker,
    LauncherTask,
    Owner,
    Rejected,
    RemoveRanks,
    Welcome,
)
from jdist.core.messages.status import ClusterFacts, StatusReport, StatusRequest
from support.driver import VERSION, Agent, Driver, facts


def tasks(d: Driver, size: int, hosts: tuple[str, ...], order: tuple[int, ...] = (), **says: int) -> list[Agent]:
    """``size`` tasks of mpirun; the r-th on the r-th host, saying hello in ``order``."""
    for r in order or range(size):
        local = [n for n in range(size) if hosts[n] == hosts[r]]
        task = LauncherTask("mpirun", r, size, local.index(r), len(local), **says)
        d.add_agent(f"t-{r}", task=task, facts=facts(hosts[r]))
    return [d.agents[f"t-{r}"] for r in range(size)]


def places(agents: list[Agent]) -> list[tuple[int, int, int, bool]]:
    (welcomes,) = zip(*([m for m in a.heard if isinstance(m, Welcome)] for a in agents), strict=True)
    return [(w.node_rank, w.first_rank, w.nproc, w.is_task) for w in welcomes]


def reason(agent: Agent) -> str:
    (turned,) = agent.heard
    assert isinstance(turned, Rejected)
    return turned.reason


def test_as_many_tasks_as_nodes_are_nodes_in_the_launchers_order() -> None:
    d = Driver(nnodes=3, nproc=(1, 2, 2))
    agents = tasks(d, 3, ("a", "b", "c"), order=(2, 0, 1))
    d.settle()
    assert d.state.model.phase == "ready"
    assert places(agents) == [(0, 0, 1, False), (1, 1, 2, False), (2, 3, 2, False)]


def test_nodes_say_how_many_ranks_they_have_where_nobody_else_did() -> None:
    d = Driver(nnodes=2, nproc=())
    d.add_agent("t-1", task=LauncherTask("srun", 1, 2), nproc=3)
    d.add_agent("t-0", task=LauncherTask("srun", 0, 2), nproc=1)
    d.settle()
    assert d.state.model.world.topology.nproc_per_node == (1, 3)


@pytest.mark.parametrize(
    ("hosts", "node_of"),
    [(("a", "a", "b", "b"), (0, 0, 1, 1)), (("a", "b", "a", "b"), (0, 1, 0, 1)), (("b", "a", "a", "a"), (0, 1, 1, 1))],
)
def test_as_many_tasks_as_ranks_are_ranks_with_their_numbers(hosts: tuple[str, ...], node_of: tuple[int, ...]) -> None:
    d = Driver(nnodes=2)
    d.attach()
    agents = tasks(d, 4, hosts, order=(3, 1, 0, 2))
    d.settle()
    assert d.state.model.phase == "ready"
    assert places(agents) == [(r, r, 1, True) for r in range(4)]
    assert {f.node_of for f in d.heard(FormWorld)} == {node_of}
    told = d.told(ClusterFacts)[-1]
    assert (told.is_by_task, told.hostnames, told.topology.nnodes) == (True, hosts, 2)
    assert told.topology.where(3) == f"rank 3 (node {node_of[3]}, {hosts[3]})"
    d.say(StatusRequest("q"))
    assert [r.node_rank for r in d.told(StatusReport)[-1].ranks] == list(node_of)


def test_the_launchers_own_numbers_of_nodes_count() -> None:
    d = Driver(nnodes=2)
    for r, node in enumerate((1, 1, 0, 0)):  # two containers with one name, and nodes in another order than ranks
        d.add_agent(f"t-{r}", task=LauncherTask("srun", r, 4, r % 2, 2, node), facts=facts("same"))
    d.settle()
    assert d.state.model.world.topology.node_of == (1, 1, 0, 0)
    assert [d.state.model.world.topology.local_rank(r) for r in range(4)] == [0, 1, 0, 1]


def test_hosts_of_one_name_are_told_apart_by_their_networks_and_not_by_the_way_to_the_controller() -> None:
    d = Driver(nnodes=2)
    for r, (network, address) in enumerate([("n", "10.0.0.1"), ("m", "10.0.0.2"), ("n", "fd00::1"), ("m", "10.0.0.2")]):
        here = msgspec.structs.replace(facts("same"), network=network, address=address)
        d.add_agent(f"t-{r}", task=LauncherTask("mpirun", r, 4, r // 2, 2), facts=here)
    d.settle()
    assert d.state.model.world.topology.node_of == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("nproc", "says"),
    [
        (
            (2,),
            "mpirun started 3 tasks; cluster c1 waits for 2 nodes of 2 ranks: start 2 (one a node) or 4 (one a rank)",
        ),
        ((1, 3), "2 nodes of 1+3 ranks: start 2 (one a node) or 4 (one a rank)"),
        ((), "2 nodes: start 2 (one a node)"),
    ],
)
def test_any_other_number_is_refused_with_what_would_fit(nproc: tuple[int, ...], says: str) -> None:
    d = Driver(nnodes=2, nproc=nproc)
    d.attach()
    agent = d.add_agent("t-0", task=LauncherTask("mpirun", 0, 3))
    assert reason(agent).endswith(says)
    d.add_agent("a-0")
    d.add_agent("a-1")
    d.settle()
    assert d.state.model.phase == "ready", "both places are still free"


def test_a_task_that_is_one_rank_cannot_be_several() -> None:
    d = Driver(nnodes=2)
    assert "one for each rank; leave out -n 2" in reason(d.add_agent("t-0", task=LauncherTask("mpirun", 0, 4), nproc=2))
    d.add_agent("t-0b", task=LauncherTask("mpirun", 0, 4), nproc=1)
    assert d.state.model.world.is_by_task


def test_ranks_and_whole_nodes_do_not_mix() -> None:
    d = Driver(nnodes=2)
    d.add_agent("a-0")
    late = d.add_agent("t-0", task=LauncherTask("mpirun", 0, 4))
    assert "mpirun started it as one of 4 ranks, and node 0 (a-0) is in cluster c1 as a whole node" in reason(late)
    d = Driver(nnodes=2)
    d.add_agent("t-0", task=LauncherTask("mpirun", 0, 4))
    late = d.add_agent("a-0")
    assert "it came as a whole node, and the task of rank 0 (t-0) is in cluster c1 as one rank" in reason(late)
    late = d.add_agent("t-1", task=LauncherTask("srun", 1, 2))
    assert "srun started it as one of 2 nodes" in reason(late)


def test_when_all_tasks_have_left_nodes_may_come() -> None:
    d = Driver(nnodes=2, node_grace=5.0)
    d.add_agent("t-3", task=LauncherTask("mpirun", 3, 4))
    d.now += 6.0
    d.sleep(0.1, beating=False)
    d.add_agent("a-0")
    d.add_agent("a-1")
    d.settle()
    assert d.state.model.phase == "ready"
    assert d.state.model.world.topology.nproc_per_node == (2, 2)


def test_the_loss_of_a_task_is_that_of_its_rank_and_another_agent_brings_it_back() -> None:
    d = Driver(nnodes=2)
    d.attach()
    agents = tasks(d, 4, ("a", "a", "b", "b"))
    d.settle()
    d.lose(agents[2])
    d.settle()
    told = d.told(ClusterFacts)[-1]
    assert told.hostnames == ("a", "a", "", "b")
    assert [r.phase for r in d.state.model.world.ranks.values()].count("gone") == 1
    d.add_agent("a-new", wanted=2, facts=facts("c"))
    d.settle()
    assert d.state.model.phase == "ready"
    assert d.state.model.world.topology.node_of == (0, 0, 1, 1), "a place is where it was"


def test_without_a_task_the_others_keep_their_nodes_and_another_controller_finds_them_there() -> None:
    d = Driver(nnodes=2)
    d.attach()
    agents = tasks(d, 4, ("a", "a", "b", "b"))
    d.settle()
    d.say(RemoveRanks("q", (0,)))
    d.settle()
    assert agents[0].is_gone
    last = d.heard(FormWorld)[-1]
    assert (last.nproc_per_node, last.node_of) == ((1, 1, 1), (0, 1, 1))

    other = Driver(nnodes=2)
    other.state.take_over({f"t-{place}": Owner((last.workers[place],)) for place in range(3)})
    for place in range(3):
        ranks = (HeldWorker(last.workers[place], 0, 1000 + place, is_up=True, generation=last.generation),)
        agent = other.add_agent(
            f"t-{place}", hello=False, task=LauncherTask("mpirun", place + 1, 4, (place + 1) % 2, 2)
        )
        held = HeldGeneration(ranks, last, ("10.0.0.1", 4000) if place == 0 else None, 0, ())
        other.step(
            FromAgent(agent.name, AgentHello(PROTOCOL, VERSION, facts("ab"[place > 0]), 0, place, held, agent.task))
        )
    assert other.state.model.phase == "ready"
    assert other.state.model.world.is_by_task
    assert other.state.model.world.topology.node_of == (0, 1, 1)
    assert not other.heard(FormWorld)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (2, 0, "and it has none; node 0 (a) has 2"),
        (2, 1, "and it has 1 for 2"),
        (0, 2, "it has 2, and node 0 (a), which is here already, none"),
    ],
)
def test_nccl_on_nodes_of_which_one_has_no_gpus(first: int, second: int, says: str) -> None:
    d = Driver(nnodes=2, backend="nccl")
    d.add_agent("a", facts=facts("a", gpus=first))
    other = d.add_agent("b", facts=facts("b", gpus=second))
    assert "backend nccl needs a GPU for each rank" in reason(other)
    assert says in reason(other)


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_nccl_on_a_node_whose_torch_was_built_for_cpus(backend: str) -> None:
    d = Driver(nnodes=1, backend=backend)
    refused = d.add_agent("a", facts=msgspec.structs.replace(facts("a"), torch_build="CPU"))
    assert f"backend {backend} was asked for, but torch" in reason(refused)
    assert "--backend gloo" in reason(refused)
    d.settle()
    assert not d.heard(Welcome)


@pytest.mark.parametrize("build", ["CUDA 12.8", "ROCm 6.4", None])
def test_nccl_on_a_node_whose_torch_may_have_it(build: str | None) -> None:
    d = Driver(nnodes=1, backend="nccl")
    d.add_agent("a", facts=msgspec.structs.replace(facts("a", gpus=2), torch_build=build))
    d.settle()
    assert {f.backend for f in d.heard(FormWorld)} == {"nccl"}


@pytest.mark.parametrize("backend", ["", "gloo", "mpi"])
def test_a_torch_for_cpus_does_for_other_backends(backend: str) -> None:
    d = Driver(nnodes=1, backend=backend)
    d.add_agent("a", facts=msgspec.structs.replace(facts("a"), torch_build="CPU"))
    d.settle()
    assert {f.backend for f in d.heard(FormWorld)} == {backend or "gloo"}


def test_without_a_word_on_the_backend_such_nodes_use_gloo() -> None:
    d = Driver(nnodes=2)
    d.add_agent("a", facts=facts("a", gpus=2))
    d.add_agent("b", facts=facts("b"))
    d.settle()
    assert {f.backend for f in d.heard(FormWorld)} == {"gloo"}


def test_tasks_that_share_a_gpu_use_gloo_or_are_refused() -> None:
    d = Driver(nnodes=1, nproc=(2,))
    for r in range(2):
        d.add_agent(f"t-{r}", task=LauncherTask("mpirun", r, 2, r, 2), facts=facts("a", gpus=1))
    d.settle()
    assert {f.backend for f in d.heard(FormWorld)} == {"gloo"}
    d = Driver(nnodes=1, nproc=(2,), backend="nccl")
    refused = d.add_agent("t-0", task=LauncherTask("mpirun", 0, 2, 0, 2), facts=facts("a", gpus=1))
    assert "2 tasks share its 1" in reason(refused)


def test_tasks_with_a_gpu_each_use_nccl() -> None:
    d = Driver(nnodes=1, nproc=(2,))
    for r in range(2):
        d.add_agent(f"t-{r}", task=LauncherTask("mpirun", r, 2, r, 2, gpu=r), facts=facts("a", gpus=2))
    d.settle()
    assert {f.backend for f in d.heard(FormWorld)} == {"cpu:gloo,cuda:nccl"}
