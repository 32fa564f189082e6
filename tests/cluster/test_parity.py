"""A rank behaves as a process of torchrun's: what a script prints there, it prints in a cell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jdist
from jdist.core.errors import CellError, CellTimeout, RankLost
from support.cells import ALL_REDUCE

DEADLINE = 300.0

SEEDS = """
import os, random, tempfile, uuid
import numpy
made = [torch.rand(1).item(), torch.initial_seed(), numpy.random.rand(),
        numpy.random.default_rng().random(), random.random(), random.SystemRandom().random(), uuid.uuid4().hex,
        os.path.basename(tempfile.mktemp()), torch.empty((), dtype=torch.int64).random_().item()]
[repr(m) for m in made]
"""


def test_unseeded_generators_differ_on_all_ranks(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    by_rank = fresh_cluster(2, 2).run(SEEDS).values
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
        assert {r.rank: r.pid for r in pair.status().ranks} == pids, what
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
dist.barrier()  # a process that ends while another still connects to it makes that one fail, in any script
dist.destroy_process_group()  # gloo's threads may abort a process that ends without, at the interpreter's exit
"""


def test_a_second_rendezvous_by_environment_meets(cluster: jdist.Cluster) -> None:
    assert cluster.run(SECOND, timeout=DEADLINE).values == dict.fromkeys(range(4), 4.0)
    code = "import os, subprocess, sys\nfrom unittest import mock\nwith mock.patch.dict(os.environ): pass\n"
    for env in ("None", "dict(os.environ)"):
        cell = f"{code}float(subprocess.check_output([sys.executable, '-c', {CHILD!r}], env={env}))"
        assert cluster.run(cell, timeout=DEADLINE).values == dict.fromkeys(range(4), 10.0)


SCRIPT = """
group = dist.new_group(timeout=timedelta(seconds=1))
try:
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=group)
    print("not called")
except RuntimeError as e:
    print("Timed out waiting 1000ms" in str(e))
# ---
group = dist.new_group()
try:
    if rank == 0:
        dist.monitored_barrier(group, timeout=timedelta(seconds=1))
    print("not called")
except RuntimeError as e:
    print(str(e).splitlines()[0])
# ---
print(dist.is_torchelastic_launched(), sorted(n for n in os.environ if n.startswith(("TORCHELASTIC_R", "ROLE_"))))
print([os.environ[n] for n in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")])
# ---
folder = os.path.join(os.environ["SCRATCH"], "saved")
state = {"model": {"w": torch.arange(4.0)}, "step": 3}
dcp.save(state, checkpoint_id=folder)
found = {"model": {"w": torch.zeros(4)}, "step": 0}
dcp.load(found, checkpoint_id=folder)
print(found["step"], found["model"]["w"].tolist())
# ---
saved = dcp.async_save(state, checkpoint_id=folder + "2", process_group=dist.new_group(backend="gloo")).result()
found = {"model": {"w": torch.zeros(4)}}
dcp.load(found, checkpoint_id=folder + "2")
print(sorted(saved.state_dict_metadata), found["model"]["w"].tolist())
# ---
rpc.init_rpc(f"w{rank}", rank=rank, world_size=world_size)
print(rpc.rpc_sync(f"w{1 - rank}", torch.add, (torch.ones(2), rank)).tolist())
rpc.shutdown()
# ---
print(torch.Generator().initial_seed())
mine = [torch.zeros(1) for _ in range(world_size)]
dist.all_gather(mine, torch.rand(1))
print(len({m.item() for m in mine}))
"""
SNIPPETS = SCRIPT.split("# ---")
IMPORTS = """
import os
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.rpc as rpc
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
"""


def test_snippets_print_what_they_print_under_torchrun(tmp_path: Path) -> None:
    """Each is a cell; a group that one has broken is made again for the next, which torchrun does not do."""
    for place in ("script", "cells"):
        (tmp_path / place).mkdir()
    script = tmp_path / "snippets.py"
    marked = "".join(f"print('#', flush=True)\n{snippet}" for snippet in SNIPPETS)
    end = "dist.barrier()\nsys.stdout.flush()\nos._exit(0)"  # torch 2.13 may abort a process that ends otherwise
    script.write_text(f"import sys\n{IMPORTS}{marked}{end}")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--redirects=3"]
    subprocess.run(
        [*torchrun, f"--log-dir={tmp_path / 'logs'}", str(script)],
        env=os.environ | {"SCRATCH": str(tmp_path / "script")},
        check=True,
        timeout=DEADLINE,
        capture_output=True,
    )
    there = {r: next(tmp_path.glob(f"logs/*/*/{r}/stdout.log")).read_text() for r in range(2)}
    expected = [{r: text.split("#\n")[i + 1] for r, text in there.items()} for i in range(len(SNIPPETS))]
    with jdist.start(nproc_per_node=2, backend="gloo", idle_timeout=60) as cluster:
        cluster.run(IMPORTS + f"os.environ['SCRATCH'] = {str(tmp_path / 'cells')!r}")
        pids = {r.pid for r in cluster.status().ranks}
        for snippet, lines in zip(SNIPPETS, expected, strict=True):
            run = cluster.run(snippet, timeout=DEADLINE)
            assert {r: outcome.stdout for r, outcome in run.outcomes.items()} == lines
            assert cluster.run(ALL_REDUCE, timeout=DEADLINE).values == {0: 2.0, 1: 2.0}, "the world is usable"
        assert cluster.run("t = torch.ones(1); dist.all_reduce(t, group=group); t.item()").values == {0: 2.0, 1: 2.0}

        with pytest.raises(CellError, match="Rank 1 failed to pass monitoredBarrier in 1000 ms"):
            cluster.run("if rank == 0:\n    dist.monitored_barrier(timeout=timedelta(seconds=1))", timeout=DEADLINE)
        assert cluster.run(ALL_REDUCE, timeout=DEADLINE).values == {0: 2.0, 1: 2.0}

        again = "dist.destroy_process_group()\ndist.init_process_group('gloo', timeout=timedelta(seconds=1))"
        assert "fail after 1 s" in cluster.run(again).outcomes[0].stdout
        for _ in range(2):  # in the next generation, too
            with pytest.raises(CellError, match="Timed out waiting 1000ms"):
                cluster.run("if rank == 0:\n    dist.all_reduce(torch.ones(1))", timeout=DEADLINE)
        assert cluster.run(ALL_REDUCE, timeout=DEADLINE).values == {0: 2.0, 1: 2.0}
        with pytest.raises(CellError, match="asks for rank"):
            cluster.run("dist.init_process_group('gloo', rank=1 - rank, world_size=2)")
        assert {r.pid for r in cluster.status().ranks} == pids
