"""Listing the variables of real ranks: agreement, busy and stopped ranks, paused frames, DTensors, deletion."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import jdist
from jdist.client.variables.table import VariableTable
from support.waits import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

SET_UP = """
same = torch.arange(4.0)
other = torch.full((2,), float(rank))
uneven = torch.zeros(rank + 1)
number = 7
step = rank
if rank == 0:
    alone = [1, 2]
"""
HOSTILE = """
import time
class Slow:
    def __repr__(self): time.sleep(600)
    def __len__(self): time.sleep(600)
    def __getattr__(self, name): time.sleep(600)
    @property
    def __class__(self): time.sleep(600)
slow = Slow()
huge = dict.fromkeys(range(1_000_000), slow)
"""


def names(table: VariableTable) -> list[str]:
    return [each.name for each in table]


def test_agreement(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(2)
    cluster.run(SET_UP)
    found = cluster.variables()
    assert names(found) == ["alone", "number", "other", "same", "step", "uneven"]
    compared = {each.name: each.comparison for each in found}
    assert compared == {
        "alone": "",
        "number": "equal",
        "other": "alike",
        "same": "alike",
        "step": "differs",
        "uneven": "differs",
    }
    assert found["alone"].missing == (1,)
    checked = cluster.variables("same,other", check=True, stats=True)
    assert [each.comparison for each in checked] == ["differs", "equal"]
    assert checked["other"].variants[0].mean == (0.0, 1.0)
    assert checked["same"].variants[0].norm is not None
    assert [len(each.variants) for each in cluster.variables("u*", ranks="0")] == [1]

    cluster.run(HOSTILE)
    began = time.monotonic()
    found = cluster.variables()
    assert time.monotonic() - began < 20
    assert (found["slow"].variants[0].type, found["huge"].variants[0].length) == ("Slow", 1_000_000)

    assert cluster.delete("slow, huge, alone") == {0: 3, 1: 2}
    assert names(cluster.variables("slow,huge,alone")) == []

    # A rank is in a cell, another is stopped, and neither is waited for.
    run = cluster.run("if rank == 0:\n    ready = True\n    import time\n    time.sleep(600)", background=True)
    assert eventually(lambda: names(cluster.variables("ready")))
    pid = cluster.status().ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        found = cluster.variables("ready,same", timeout=3.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert found.ranks == (0,)
    assert "no answer" in found.absent[1]
    assert found["ready"].missing == ()
    cluster.interrupt()
    run.wait()


def test_a_dtensor(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(2)
    cluster.run(
        "from torch.distributed.tensor import distribute_tensor, Shard\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "grid = init_device_mesh('cpu', (2,))\n"
        "w = distribute_tensor(torch.arange(12.).reshape(6, 2), grid, [Shard(0)])"
    )
    w = cluster.variables(check=True)["w"]
    (variant,) = w.variants
    assert (variant.shape, variant.nbytes, w.comparison) == ((6, 2), (24, 24), "alike")
    assert variant.placement.startswith("(Shard(dim=0)) on mesh")
    assert variant.detail == "local [3, 2]"


def test_names_of_a_paused_frame(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(2)
    cluster.run("rank_before = rank\ndef work(depth):\n    rank = 'mine'\n    breakpoint()\n    return depth")
    run = cluster.run("outside = 1\nwork(5)", background=True)
    assert eventually(lambda: len(cluster.facts.paused) == 2)
    found = cluster.variables()
    assert found.frames == {"work": (0, 1)}
    assert found["depth"].variants[0].value == "5"
    assert found["rank"].variants[0].value == "'mine'"
    assert "outside" in names(found)
    cluster.resume()
    run.wait()
    found = cluster.variables()
    assert "depth" not in names(found)
    assert found.frames == {}
