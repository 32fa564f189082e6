"""Starts: sizes, rendezvous methods, what cannot be started and leaves nothing, and nodes that come late or never."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch

import jdist
from jdist.client import find
from jdist.client.lifecycle import start
from jdist.core.messages.status import ClusterFacts
from jdist.launch.join import LocalLauncher
from support.cells import ALL_REDUCE
from support.ports import free_port
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces


class MissingNode(LocalLauncher):
    """Starts an agent for every node but the last, whose own comes when the test says so."""

    late: threading.Event

    async def launch(self, join_line: Awaitable[str]) -> None:
        line = asyncio.ensure_future(join_line)
        self.plan = msgspec.structs.replace(self.plan, nnodes=self.plan.settings.nnodes - 1)
        await super().launch(line)
        type(self).join_line = await line
        type(self).launched = self

    join_line = ""
    launched: MissingNode

    def start_the_missing(self, node_rank: int) -> None:
        self.start_agent(node_rank).send_line(self.join_line)


@pytest.fixture
def launcher_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """``MissingNode`` under a name of its own, registered as an installed package would."""
    info = tmp_path / "missing_launcher-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: missing-launcher\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[jdist.launchers]\nmissing = {__name__}:MissingNode\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "missing"


# ---------------------------------------------------------------- sizes and rendezvous


def test_another_number_of_ranks_on_each_node(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster("2,1", 2)
    assert own.run("node_rank, local_rank, world_size, dist.get_rank()").values == {
        0: (0, 0, 3, 0),
        1: (0, 1, 3, 1),
        2: (1, 0, 3, 2),
    }
    assert own.run(ALL_REDUCE).values == dict.fromkeys(range(3), 3.0)
    assert own.world_size == 3
    assert len(own.nodes) == 2
    assert own.start_seconds > 0


def test_fresh_interpreters(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(2, 1, fork=False)
    assert own.run(ALL_REDUCE).values == {0: 2.0, 1: 2.0}
    own.restart([1])
    assert own.run(ALL_REDUCE, timeout=30).values == {0: 2.0, 1: 2.0}


def test_rendezvous_over_a_port_of_the_users(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    port = free_port()
    own = fresh_cluster(2, 1, init_method=f"tcp://127.0.0.1:{port}")
    connections = "import psutil\n[c.raddr.port for c in psutil.Process().net_connections('tcp') if c.raddr]"
    assert own.run(ALL_REDUCE).values == {0: 2.0, 1: 2.0}
    assert all(port in ports for ports in own.run(connections).values.values())


def test_rendezvous_over_a_file(fresh_cluster: Callable[..., jdist.Cluster], tmp_path: Path) -> None:
    """Also with a file that an earlier cluster has used, and over re-formings."""
    for _ in range(2):
        own = fresh_cluster(2, 1, init_method=f"file://{tmp_path}/meet")
        assert own.run(ALL_REDUCE).values == {0: 2.0, 1: 2.0}
        with pytest.raises(jdist.CellTimeout):
            own.run("if rank: dist.barrier()", timeout=0.3)
        assert own.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
        own.stop()


def test_the_first_cell_straight_after_the_start(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    assert fresh_cluster(2, 1).run("print('first', rank)").outcomes[1].stdout == "first 1\n"


# ---------------------------------------------------------------- what cannot be started


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "glo"}, ["'glo'", "gloo"]),
        ({"init_method": "tcp://nowhere"}, ["tcp://nowhere", "HOST:PORT"]),
        ({"init_method": "file:///not/there/meet"}, ["/not/there"]),
        ({"init_method": "udp://h:1"}, ["udp://h:1", "env://"]),
        ({"launcher": "locl"}, ["'locl'", "local"]),
        ({"name": "a b"}, ["'a b'", "letters"]),
        ({"nproc_per_node": "2,2,2", "nnodes": 2}, ["2,2,2", "2"]),
        ({"nproc_per_node": 0}, ["0"]),
        ({"nnodes": 0}, ["0"]),
        ({"nproc_per_node": "two"}, ["two"]),
        ({"interupt_grace": 1.0}, ["interupt_grace"]),
    ],
)
def test_a_start_that_makes_no_sense(traces: Traces, options: dict[str, object], words: list[str]) -> None:
    before = traces.snapshot()
    with pytest.raises(jdist.UsageError) as caught:
        jdist.start(**options)  # type: ignore[arg-type]
    assert all(w in str(caught.value) for w in words)
    assert not traces.excess(before)


WITHOUT_NCCL = ["rank 0"] if torch.version.cuda or torch.version.hip else ["node 0", "refused", "built for CPUs alone"]
"""A torch for CPUs is known when its node joins, before there is any rank; that GPUs are missing, when one is."""


@pytest.mark.parametrize(
    ("options", "words"),
    [({"backend": "mpi"}, ["rank 0", "mpi", "--backend gloo"]), ({"backend": "nccl"}, [*WITHOUT_NCCL, "nccl"])],
)
def test_a_backend_that_is_not_there(traces: Traces, options: dict[str, str], words: list[str]) -> None:
    before = traces.snapshot()
    with pytest.raises(jdist.LaunchError) as caught:
        jdist.start(1, 1, timeout=60, **options)
    assert all(w in str(caught.value) for w in words)
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)


def test_a_port_that_is_taken(traces: Traces) -> None:
    before = traces.snapshot()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(jdist.LaunchError) as caught:
            jdist.start(1, 1, backend="gloo", timeout=60, init_method=f"tcp://127.0.0.1:{port}")
    assert str(port) in str(caught.value)
    assert "in use" in str(caught.value).lower()
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)


def test_a_name_that_is_taken(cluster: jdist.Cluster) -> None:
    with pytest.raises(jdist.UsageError, match=f"called {cluster.name} is already running"):
        jdist.start(1, 1, name=cluster.name)


# ---------------------------------------------------------------- nodes that are missing


def test_a_missing_node_is_named_and_waited_for_until_the_timeout(traces: Traces, launcher_missing: str) -> None:
    before = traces.snapshot()
    seen: list[str] = []

    def on_progress(facts: start.Progress) -> None:
        if isinstance(facts, ClusterFacts):
            seen.append(start.describe_missing(facts))

    with pytest.raises(jdist.LaunchError) as caught:
        jdist.start(1, 2, backend="gloo", launcher=launcher_missing, timeout=8.0, on_progress=on_progress)
    assert "missing: node 1" in str(caught.value)
    assert "8 s" in str(caught.value)
    assert any("1 of 2 nodes here; missing: node 1" in text for text in seen)
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)


def test_a_node_that_comes_late(fresh_cluster: Callable[..., jdist.Cluster], launcher_missing: str) -> None:
    def on_progress(facts: start.Progress) -> None:
        if isinstance(facts, ClusterFacts) and facts.hostnames[0] and not facts.hostnames[1] and not started:
            started.append(1)
            MissingNode.launched.start_the_missing(1)

    started: list[int] = []
    own = fresh_cluster(1, 2, launcher=launcher_missing, on_progress=on_progress)
    assert started
    assert own.run(ALL_REDUCE).values == {0: 2.0, 1: 2.0}
    found = subprocess.run(
        [sys.executable, "-m", "jdist", "join", MissingNode.join_line],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 1
    assert "all 2 nodes" in found.stderr
    assert "Traceback" not in found.stderr
    assert own.run(ALL_REDUCE).values == {0: 2.0, 1: 2.0}


def test_a_node_that_waits_for_long_is_not_given_up(
    fresh_cluster: Callable[..., jdist.Cluster], launcher_missing: str
) -> None:
    """Longer than what a silent node is given."""
    here: list[tuple[str, ...]] = []

    def on_progress(facts: start.Progress) -> None:
        if not isinstance(facts, ClusterFacts):
            return
        here.append(facts.hostnames)
        if facts.hostnames[0] and not timer.is_alive() and not timer.finished.is_set():
            timer.start()

    timer = threading.Timer(3.0, lambda: MissingNode.launched.start_the_missing(1))
    own = fresh_cluster(1, 2, launcher=launcher_missing, on_progress=on_progress, beat_timeout=1.5)
    timer.join(10)
    assert own.run(ALL_REDUCE).values == {0: 2.0, 1: 2.0}
    known = [bool(hosts[0]) for hosts in here]
    assert known == sorted(known), "once it is there, it stays"


# ---------------------------------------------------------------- again and again


def test_start_and_stop_leave_nothing(traces: Traces) -> None:
    before = traces.snapshot()
    for _ in range(3):
        with jdist.start(1, 1, backend="gloo", timeout=60) as own:
            traces.note_clusters()
            assert own.run(ALL_REDUCE).values == {0: 1.0}
            assert own.name in find.connections()
        assert own.name not in find.connections()
        assert eventually(lambda: not traces.excess(before)), traces.excess(before)


def test_stop_says_so_to_other_clients(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(1, 1)
    other = jdist.attach(own.name)
    try:
        run = other.run("import time; time.sleep(100)", background=True)
        assert eventually(lambda: run.state == "running")
        own.stop()
        assert run.wait(60)
        with pytest.raises(jdist.ConnectionLost, match="stopped by a client"):
            run.check()
        with pytest.raises(jdist.ConnectionLost, match="stopped by a client"):
            other.run("1")
        with pytest.raises(jdist.UsageError):
            jdist.attach(own.name)
    finally:
        other.detach()


def test_a_cluster_without_clients_ends(
    fresh_cluster: Callable[..., jdist.Cluster], traces: Traces, tmp_path: Path
) -> None:
    before = traces.snapshot()
    own = fresh_cluster(1, 1, idle_timeout=0.5)
    end = tmp_path / "end"
    waits = f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.01)"
    run = own.run(waits, background=True)
    assert eventually(lambda: run.state == "running")
    own.detach()
    threading.Event().wait(1.0)  # twice the timeout
    assert own.name in find.connections(), "a cell still runs"
    end.touch()
    assert eventually(lambda: own.name not in find.connections())
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)


def test_the_controller_asked_to_end(fresh_cluster: Callable[..., jdist.Cluster], traces: Traces) -> None:
    before = traces.snapshot()
    own = fresh_cluster(1, 1)
    run = own.run("import time; time.sleep(100)", background=True)
    os.kill(own.asynchronous.link.connection.pid, 15)
    assert run.wait(60)
    with pytest.raises(jdist.ConnectionLost, match="SIGTERM"):
        run.check()
    own.detach()
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)
