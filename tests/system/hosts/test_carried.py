"""Nodes over ssh that cannot open a connection to this machine: their logins carry the connections."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import jdist
from support.cells import ALL_REDUCE
from support.hosts.namespaces import Bed
from support.hosts.sshd import PORT, Sshd
from support.waits import eventually

ROOT = Path(jdist.__file__).parents[1]
COUNT = "import time\nfor i in range({n}):\n    print('line', i, flush=True)\n    time.sleep(0.1)\ni"
PYTHON = ("--python", sys.executable)
KERNEL = """
import sys, jdist
cluster = jdist.start(launcher="ssh", hosts="a:1,b:1", timeout=90, idle_timeout=60,
                      env=dict(v.split("=", 1) for v in sys.argv[1:]))
print(cluster.name, flush=True)
sys.stdin.read()
"""


def environment() -> dict[str, str]:
    """What makes this jdist the one that is imported on the nodes, and its processes this test run's."""
    return {"PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"]}


def processes(word: str) -> list[psutil.Process]:
    """Those of this test run's that have this word in their command lines."""
    mark, found = f"JUPYTER_RUNTIME_DIR={os.environ['JUPYTER_RUNTIME_DIR']}", []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environ = Path(f"/proc/{process.pid}/environ").read_text(errors="replace").split("\0")
            if word in process.cmdline() and mark in environ:
                found.append(process)
    return found


def keepers() -> list[psutil.Process]:
    return processes("jdist.launch.tunnel_keeper")


def ends() -> list[psutil.Process]:
    return processes("node-end")


@pytest.fixture
def shut_out(hosts: Bed, logins: Sshd) -> Iterator[Bed]:
    """The nodes cannot open a connection to this machine. In the end, nothing that carries is left."""
    hosts.shut_out(PORT)
    yield hosts
    hosts.let_in()
    assert eventually(lambda: not keepers() + ends()), keepers() + ends()


@pytest.fixture
def carried(shut_out: Bed, fresh_cluster: Callable[..., jdist.Cluster]) -> Callable[..., jdist.Cluster]:
    """Starts ranks on hosts that are shut out."""

    def start(hosts: str = "a:2,b:1", *words: str, **options: Any) -> jdist.Cluster:
        args = (*PYTHON, *words)
        options = {"timeout": 90, "env": environment(), **options}
        return fresh_cluster(None, None, launcher="ssh", hosts=hosts, launcher_args=args, **options)

    return start


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("line")]


def test_nodes_that_cannot_reach_the_controller_form_a_world_at_their_own_addresses(
    carried: Callable[..., jdist.Cluster], hosts: Bed
) -> None:
    cluster = carried("a:2,b:1")  # b forwards nothing
    assert len(keepers()) == len(ends()) == 2
    assert cluster.run(ALL_REDUCE, timeout=30).values == dict.fromkeys(range(3), 3.0)
    found = cluster.run("import os; os.environ['MASTER_ADDR']", timeout=30).values
    assert found == dict.fromkeys(range(3), hosts.nodes[0].address)
    cluster.run("import torch\nx = torch.full((12_500_000,), float(rank))")
    pulled = cluster.pull("x", ranks=[2])[2]
    assert (len(pulled), pulled[-1].item()) == (12_500_000, 2.0)
    cluster.push(y=pulled)
    assert cluster.run("y[-1].item()").values == dict.fromkeys(range(3), 2.0)
    run = cluster.run("while True: pass", background=True)
    assert eventually(lambda: run.state == "running")
    run.cancel()
    assert run.wait(30)
    assert cluster.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(3), 3.0)
    diagnosis = cluster.doctor()
    assert diagnosis.is_well, diagnosis
    assert {r.address for r in diagnosis.examination.nodes.values()} == {n.address for n in hosts.nodes[:2]}
