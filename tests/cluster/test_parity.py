"""A rank behaves as a process of torchrun's: what a script prints there, it prints in a cell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jdist
from jdist.core.errors import CellTimeout, RankLost

DEADLINE = 120.0

SEEDS = """
import os, random, tempfile, uuid
import numpy
made = [torch.rand(1).item(), torch.initial_seed(), numpy.random.rand(),
        numpy.random.default_rng().random(), random.random(), random.SystemRandom().random(), uuid.uuid4().hex,
        os.path.basename(tempfile.mktemp()), torch.empty((), dtype=torch.int64).random_().item()]
[repr(m) for m in made]
"""


def test_unseeded_generators_differ_on_all_ranks(cluster: jdist.Cluster) -> None:
    by_rank = cluster.run(SEEDS).values
    for same in zip(*by_rank.values(), strict=True):
        assert len(set(same)) == 4, same


UP = """
import torch.distributed.rpc as rpc
def up():
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
def total():
    peer = f"worker{(rank + 1) % world_size}"
    called = rpc.rpc_sync(peer, torch.add, (torch.ones(1), 1))
    awaited = rpc.rpc_async(peer, torch.add, (torch.ones(1), 2)).wait()
    return (called + awaited + rpc.remote(peer, torch.add, (torch.ones(1), 3)).to_here()).item()
"""


@pytest.fixture
def pair() -> Iterator[jdist.Cluster]:
    with jdist.start(nproc_per_node=2, backend="gloo", idle_timeout=60) as cluster:
        cluster.run(UP)
        yield cluster


def test_rpc_is_initialised_used_shut_down_and_initialised_again(cluster: jdist.Cluster) -> None:
    nine = dict.fromkeys(range(4), 9.0)
    assert cluster.run(f"{UP}\nup()\ntotal()").values == nine
    assert cluster.run("total()").values == nine, "in a later cell"
    cluster.run("rpc.shutdown()")
    assert cluster.run("up()\nt = total()\nrpc.shutdown()\nt").values == nine


SLEEP = "time.sleep, (600,)"
STUCK = {
    "a call": f"if rank == 0:\n    rpc.rpc_sync('worker1', {SLEEP}, timeout=0)",
    "a remote reference": f"if rank == 0:\n    rpc.remote('worker1', {SLEEP}).to_here(timeout=0)",
    "a shutdown without the other": "if rank == 0:\n    rpc.shutdown()",
    "a shutdown while a function runs": f"rpc.rpc_async(f'worker{{1 - rank}}', {SLEEP}, timeout=0)\nrpc.shutdown()",
}


def test_an_interrupt_in_rpc_leaves_ranks_that_can_use_it_again(pair: jdist.Cluster) -> None:
    """Each wait is ended, names are kept, and so it is in a world with a fresh rank and without RPC on one rank."""
    pair.run("import time\nkept = [rank]")
    pids = {r.rank: r.pid for r in pair.status().ranks}
    for what, cell in STUCK.items():
        pair.run("up()")
        with pytest.raises(CellTimeout):
            pair.run(cell, timeout=1)
        assert pair.run("kept, dist.is_initialized()").values == {0: ([0], True), 1: ([1], True)}, what
        assert pair.run("up()\nt = total()\nrpc.shutdown()\nt", timeout=DEADLINE).values == {0: 9.0, 1: 9.0}, what
    with pytest.raises(CellTimeout):
        pair.run("if rank == 1:\n    up()", timeout=1)
    assert pair.run("up()\ntotal()", timeout=DEADLINE).values == {0: 9.0, 1: 9.0}
    assert {r.rank: r.pid for r in pair.status().ranks} == pids

    with pytest.raises(RankLost):
        pair.run("import os; os._exit(1)", ranks=[1])
    assert pair.run(f"{UP}\nup()\nt = total()\nrpc.shutdown()\nt", timeout=DEADLINE).values == {0: 9.0, 1: 9.0}


SECOND = """
store, given_rank, size = next(dist.rendezvous("env://"))
store.set(str(given_rank), "here")
store.wait([str(r) for r in range(size)])
group = dist.ProcessGroupGloo(store, given_rank, size)
t = torch.ones(1)
group.allreduce([t]).wait()
t.item()
"""
CHILD = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(t)
print(t.item())
"""


def test_a_second_rendezvous_by_environment_meets(cluster: jdist.Cluster) -> None:
    assert cluster.run(SECOND, timeout=DEADLINE).values == dict.fromkeys(range(4), 4.0)
    cell = f"import subprocess, sys\nfloat(subprocess.check_output([sys.executable, '-c', {CHILD!r}]))"
    assert cluster.run(cell, timeout=DEADLINE).values == dict.fromkeys(range(4), 10.0)
