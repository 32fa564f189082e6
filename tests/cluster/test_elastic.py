"""Resizing, for real: a node is added, ranks are removed; the others keep process and names, and training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
import pytest

import jdist
from support import anatomy
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

SUM = "t = torch.ones(1) * (rank + 1); dist.all_reduce(t); t.item()"
WHO = "rank, dist.get_rank(), world_size, dist.get_world_size(), local_rank, node_rank"
ENV = """
import os
[int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
"""
TRAIN = """
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)

def train(model, optimizer, steps):
    for step in steps:
        g = torch.Generator().manual_seed(1000 * step + rank)
        x, y = torch.randn(16, 8, generator=g), torch.randint(0, 2, (16,), generator=g)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def own(run_traces: Traces) -> Iterator[jdist.Cluster]:
    """Two nodes of two ranks."""
    with jdist.start(2, 2, backend="gloo", name="elastic", timeout=60, idle_timeout=60) as cluster:
        run_traces.note_clusters()
        yield cluster


def pids(cluster: jdist.Cluster) -> list[int]:
    return [anatomy.worker(cluster, r) for r in cluster.ranks]


def check_numbers(cluster: jdist.Cluster) -> None:
    """Every rank, its variables, its environment and torch agree on who it is."""
    size = cluster.world_size
    topology = cluster.topology
    for rank, found in cluster.run(WHO, timeout=30).values.items():
        local, node = topology.local_rank(rank), topology.node_rank(rank)
        assert found == (rank, rank, size, size, local, node)
    for rank, found in cluster.run(ENV, timeout=30).values.items():
        node = topology.node_rank(rank)
        assert found == [rank, size, topology.local_rank(rank), topology.nproc_per_node[node], node]
    assert set(cluster.run(SUM, timeout=30).values.values()) == {size * (size + 1) / 2}


def test_a_node_more_and_a_rank_less(own: jdist.Cluster) -> None:
    own.run("seen = 0", setup=True)
    own.run("born = rank")
    before = pids(own)
    added = own.add_node()
    assert added.added == (4, 5)
    assert own.world_size == 6
    assert pids(own)[:4] == before
    assert own.run("born", "0-3").values == {r: r for r in range(4)}
    assert set(own.run("seen").values.values()) == {0}, "the setup cell, on the new ranks, too"
    check_numbers(own)

    own.run("born = rank")
    lived = pids(own)
    third = lived.pop(3)
    removed = own.remove("3")
    assert removed.renumbered == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}
    assert "rank 4 is now rank 3" in str(removed)
    assert pids(own) == lived
    assert eventually(lambda: not psutil.pid_exists(third))
    assert own.run("born").values == {0: 0, 1: 1, 2: 2, 3: 4, 4: 5}
    check_numbers(own)
    assert own.facts.nproc_per_node == (2, 1, 2)
    said = own.run("print(rank)").outcomes
    assert {r: o.stdout for r, o in said.items()} == {r: f"{r}\n" for r in range(5)}
    assert own.pull("born", [3]) == {3: 4}
    own.push(x=7, ranks=[4])
    assert own.run("x", [4]).values == {4: 7}
    assert own.logs(4).text.splitlines()[-1] == "4"


def test_whole_nodes_go_also_the_one_with_the_store_and_come_again(own: jdist.Cluster) -> None:
    own.run("born = rank")
    agents = [anatomy.agent(own, 0), anatomy.agent(own, 1)]
    removed = own.remove("node=0")
    assert removed.renumbered == {2: 0, 3: 1}
    assert own.nodes == [own.nodes[0]]
    assert eventually(lambda: not psutil.pid_exists(agents[0]))
    assert own.run("born").values == {0: 2, 1: 3}
    check_numbers(own)
    assert own.add_node(3).added == (2, 3, 4)
    check_numbers(own)
    anatomy.kill(anatomy.worker(own, 4))
    assert eventually(lambda: own.status().ranks[4].fresh)
    check_numbers(own)
    assert own.run("born", "0-1").values == {0: 2, 1: 3}


def test_ddp_trains_on_through_both(own: jdist.Cluster) -> None:
    own.run(TRAIN, setup=True)
    own.run("model, optimizer = make()\nmodel = DDP(model)\ntrain(model, optimizer, range(4))", timeout=60)
    own.add_node(1)
    own.restore(4, 0, "model,optimizer")
    own.run("train(model, optimizer, range(4, 8))", timeout=60)
    assert own.check("model.module.state_dict()")
    assert own.check("optimizer.state_dict()")
    own.remove([1])
    own.run("train(model, optimizer, range(8, 12))", timeout=60)
    assert own.check("model.module.state_dict()")
    assert own.check("optimizer.state_dict()")
    assert set(own.run("int(optimizer.state[next(iter(model.parameters()))]['step'])").values.values()) == {12}


def test_groups_follow_their_members(own: jdist.Cluster) -> None:
    own.new_group("odd", "1,3")
    own.new_mesh("dp=2,tp=2")
    own.run("low = dist.new_group([0, 1]); ends = dist.new_group([0, 3]); high = dist.new_group([2, 3])")
    names = own.run("low.group_name if rank < 2 else high.group_name").values
    removed = own.remove("0")
    assert own.groups == {"odd": [0, 2]}
    assert "mesh dp=2,tp=2 is gone" in str(removed)
    assert set(own.run("'mesh' in globals()").values.values()) == {False}
    summed = "t = torch.ones(1); dist.all_reduce(t, group={}); t.item()"
    assert own.run(summed.format("groups['odd']"), "0,2", timeout=20).values == {0: 2.0, 2: 2.0}
    assert own.run(summed.format("high"), "1,2", timeout=20).values == {1: 2.0, 2: 2.0}
    assert own.run("high.group_name", "1,2").values == {1: names[2], 2: names[3]}
    with pytest.raises(jdist.CellError):
        own.run(summed.format("low"), "0", timeout=20)
    own.run("new = dist.new_group([0, 2])", timeout=20)
    own.add_node(1)
    assert own.run(summed.format("new"), "0,2", timeout=20).values == {0: 2.0, 2: 2.0}
    assert own.run(summed.format("high"), "1,2", timeout=20).values == {1: 2.0, 2: 2.0}


def test_what_is_refused_changes_nothing(own: jdist.Cluster) -> None:
    own.run("born = rank")
    run = own.run("import time; time.sleep(60)", "1", background=True)
    with pytest.raises(jdist.UsageError, match=f"run {run.number} is running on rank 1"):
        own.remove("3")
    with pytest.raises(jdist.UsageError, match=f"run {run.number} is running on rank 1"):
        own.add_node()
    run.cancel()
    run.wait()
    with pytest.raises(jdist.UsageError, match="would leave no rank"):
        own.remove("all")
    with pytest.raises(jdist.UsageError, match="there is no rank 9"):
        own.remove("9")
    with pytest.raises(jdist.UsageError, match="no launcher"):
        own.add_node(launcher="locla")
    assert own.run("born").values == {r: r for r in range(4)}
    check_numbers(own)


def test_a_controller_that_is_started_again_knows_the_size(own: jdist.Cluster, run_traces: Traces) -> None:
    own.run("told = 1", setup=True)
    own.add_node(1)
    own.remove("0")
    own.run("born = rank")
    old = anatomy.controller(own)
    anatomy.kill(old)
    assert eventually(lambda: own.asynchronous.link.is_orphaned or anatomy.controller(own) != old)
    own.revived()
    run_traces.note_clusters()
    assert own.facts.nproc_per_node == (1, 2, 1)
    assert own.run("born, told").values == {r: (r, 1) for r in range(4)}
    check_numbers(own)
    anatomy.kill(anatomy.worker(own, 3))
    assert eventually(lambda: own.status().ranks[3].fresh)
    assert own.run("told", [3]).values == {3: 1}
    own.remove("node=0")
    check_numbers(own)


def test_without_a_node_that_is_gone(own: jdist.Cluster) -> None:
    own.run("born = rank")
    anatomy.kill(anatomy.agent(own, 0))
    assert eventually(lambda: own.facts.hostnames[0] == "")
    with pytest.raises(jdist.UsageError, match="remove ranks 0-1"):
        own.run("born")
    own.remove("node=0")
    assert own.run("born").values == {0: 2, 1: 3}
    check_numbers(own)
