"""Nodes in a Ray cluster: real ones, on hosts of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jdist
from jdist.client import find
from support.cells import ALL_REDUCE, SEND
from support.hosts.namespaces import Bed
from support.hosts.rays import NCPU, Rays
from support.waits import eventually

ROOT = Path(jdist.__file__).parents[1]
PATIENCE = 90.0
"""Seconds. Each actor of Ray's is a Python program that has to start."""
KERNEL = """
import sys, jdist
address, head, *env = sys.argv[1:]
cluster = jdist.start(2, 2, launcher="ray", launcher_args=["--address", address], bind_host=head, timeout=180,
                      backend="gloo", idle_timeout=60, name="rayed", env=dict(v.split("=", 1) for v in env))
print(cluster.name, flush=True)
sys.stdin.read()
"""


def environment() -> dict[str, str]:
    """What makes this jdist the one on the nodes, and its processes this test run's."""
    return {"PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"]}


@pytest.mark.timeout(600)
def test_a_cluster_on_ray_outlives_its_kernel_gets_a_node_back_and_leaves_nothing(
    rays: Rays, hosts: Bed, traces: Any
) -> None:
    words = [sys.executable, "-c", KERNEL, rays.address, hosts.head]
    words += [f"{k}={v}" for k, v in environment().items()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kernel:
        try:
            assert kernel.stdout is not None
            assert kernel.stdout.readline().strip() == "rayed"
        finally:
            kernel.kill()
    cluster = jdist.attach("rayed")
    try:
        traces.note_clusters()
        here = "import os, socket; socket.gethostname(), torch.get_num_threads()"
        first, second = sorted(cluster.run(here, timeout=PATIENCE).values.values())[::2]
        assert {first[0], second[0]} == {n.name for n in hosts.nodes[:2]}
        assert first[1] == second[1] == 1, "what Ray gives its actor is not each rank's"
        assert cluster.run(SEND, timeout=PATIENCE).values == {0: 0.0, 1: 0.0, 2: 0.0, 3: 7.0}
        assert cluster.run(ALL_REDUCE, timeout=PATIENCE).values == dict.fromkeys(range(4), 4.0)
        assert sorted(rays.held())[:3] == ["RayNode", "RayNode", "RaySupervisor@"], "it outlives any node"
        cluster.run("kept = rank")
        lost = cluster.facts.hostnames[1]
        node = next(n for n in hosts.nodes if n.name == lost)
        rays.kill(node)
        assert eventually(lambda: not cluster.facts.hostnames[1], PATIENCE)
        assert cluster.pull("kept", ranks=[0, 1]) == {0: 0, 1: 1}
        rays.start(node)
        rays.wait(node)
        cluster.restart(ranks=[2, 3])
        found = cluster.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=PATIENCE)
        assert found.values == {0: (4.0, 0), 1: (4.0, 1), 2: (4.0, None), 3: (4.0, None)}
        cluster.add_node(1)
        assert cluster.run(ALL_REDUCE, timeout=PATIENCE).values == dict.fromkeys(range(5), 5.0)
    finally:
        cluster.stop()
    assert rays.held() == []


@pytest.mark.timeout(400)
def test_what_ray_has_no_place_for_is_told_and_taken_back(
    rays: Rays, hosts: Bed, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    told: list[str] = []
    with pytest.raises(jdist.LaunchError, match="0 of 3 nodes here"):
        fresh_cluster(
            1,
            3,
            launcher="ray",
            launcher_args=["--address", rays.address, "--num-cpus", str(NCPU)],
            bind_host=hosts.head,
            timeout=20,
            on_progress=lambda p: told.append(getattr(p, "text", "")),
            name="toomany",
        )
    assert "toomany" not in find.connections()
    pending = next(t for t in told if "placement group" in t)
    assert "3 nodes with 4 CPU each are asked for" in pending
    for node in hosts.nodes[:2]:
        assert f"{node.address} ({NCPU} CPU)" in pending
    assert rays.held() == []


@pytest.mark.timeout(400)
def test_an_agent_that_ends_says_why_by_node(
    rays: Rays, hosts: Bed, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    with pytest.raises(jdist.LaunchError, match=r"node [01]: its agent ended with code 1: .*encodings"):
        fresh_cluster(
            1,
            2,
            launcher="ray",
            launcher_args=["--address", rays.address],
            bind_host=hosts.head,
            timeout=PATIENCE,
            env={"PYTHONHOME": "/nowhere"},
        )
    assert rays.held() == []
