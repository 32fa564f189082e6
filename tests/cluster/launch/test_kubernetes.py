"""The kubernetes launcher against an API server of the tests' own: a world of pods that are run, and pods that are not.

No real cluster stands behind this: neither a scheduler, a kubelet nor a container.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jdist
from jdist.client import find
from jdist.core.settings import Settings
from jdist.launch.base import LaunchPlan
from jdist.launch.kubernetes import KubernetesLauncher
from support.jobs import jobs_in
from support.kubes import Kubes
from support.waits import eventually

pytestmark = pytest.mark.usefixtures("traces")
PATIENCE = 60.0
ARGS = ("--image", "lab:1")


@pytest.fixture
def kubes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubes]:
    yield from _kubes(tmp_path, monkeypatch, runs=False)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubes]:
    yield from _kubes(tmp_path, monkeypatch, runs=True)


def _kubes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, runs: bool) -> Iterator[Kubes]:
    with Kubes(tmp_path, runs=runs) as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        # The client reads it when it is imported, which another test may have done already.
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
        yield server


def plan(tmp_path: Path, *args: str, nnodes: int = 2) -> LaunchPlan:
    settings = Settings(name="k1", nnodes=nnodes, launcher="kubernetes", launcher_args=(*ARGS, *args))
    return LaunchPlan(settings, str(tmp_path / "jdist-k1.log"))


async def known(line: str) -> str:
    return line


async def seen(is_so: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := is_so()) and time.monotonic() < deadline:  # noqa: ASYNC110 — a thread's news wake nobody here
        await asyncio.sleep(0.02)
    return found


def test_what_pods_wait_for_and_why_they_fail_is_told_and_all_of_it_is_removed(kubes: Kubes, tmp_path: Path) -> None:
    async def go() -> None:
        launcher = KubernetesLauncher(plan(tmp_path))
        name = launcher.plan.label
        await launcher.launch(known("jdist1.x"))
        assert [kubes.names(k) for k in ("statefulsets", "services", "secrets")] == [[name]] * 3
        assert await seen(lambda: launcher.describe() == f"pod {name}-0 is pending; pod {name}-1 is pending")
        said = "0/3 nodes are available"
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        kubes.set_status(f"{name}-0", conditions=[condition])
        assert await seen(lambda: f"pod {name}-0 is pending: Unschedulable: {said}" in launcher.describe())
        assert launcher.failures() == {}
        kubes.logs[f"{name}-1"] = "first\nTraceback\nOSError: disk is full"
        crash = {"name": "agent", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        kubes.set_status(f"{name}-1", containerStatuses=[crash])
        assert await seen(launcher.failures)
        (failed,) = launcher.failures().items()
        assert failed[0] == 1
        assert failed[1].endswith("(CrashLoopBackOff); its last lines: first / Traceback / OSError: disk is full")
        await launcher.end()
        assert not kubes.objects

    asyncio.run(go())


def test_a_launch_that_was_let_go_is_removed_by_any_client(kubes: Kubes, tmp_path: Path) -> None:
    async def go() -> None:
        launcher = KubernetesLauncher(plan(tmp_path))
        await launcher.launch(known("jdist1.x"))
        await launcher.release()
        assert kubes.names("pods")
        other = KubernetesLauncher(plan(tmp_path))
        await other.remove_leftovers()
        assert not kubes.objects
        await other.remove_leftovers()  # there is nothing left: no error

    asyncio.run(go())


def test_a_pod_is_made_anew_in_its_place_with_the_new_line(kubes: Kubes, tmp_path: Path) -> None:
    async def go() -> None:
        launcher = KubernetesLauncher(plan(tmp_path))
        name = launcher.plan.label
        await launcher.launch(known("jdist1.x"))
        before = kubes.uid(f"{name}-1")
        first = dict(kubes.objects["secrets", name]["data"])
        assert await launcher.relaunch(1, "jdist1.y")
        assert kubes.uid(f"{name}-1") != before
        assert kubes.objects["secrets", name]["data"] != first
        await launcher.end()

    asyncio.run(go())


def test_what_the_server_refuses_is_told_in_its_words_and_nothing_is_left(kubes: Kubes, tmp_path: Path) -> None:
    said = 'statefulsets.apps is forbidden: User "u" cannot create resource in the namespace "lab"'
    kubes.refuses["POST statefulsets"] = (403, said)

    async def go() -> None:
        launcher = KubernetesLauncher(plan(tmp_path))
        with pytest.raises(jdist.LaunchError, match=r"namespace lab: cannot set up the nodes: statefulsets.apps is"):
            await launcher.launch(known("jdist1.x"))
        await launcher.end()
        assert not kubes.objects

    asyncio.run(go())


def test_without_a_cluster_set_up_the_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(jdist.LaunchError, match="no Kubernetes cluster is set up for this user"):
        jdist.start(nnodes=2, launcher="kubernetes", launcher_args=ARGS, name="k0", timeout=PATIENCE)
    assert "k0" not in find.connections()


def test_a_world_of_pods(running: Kubes, fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    """Hello world, all_reduce, send and recv, a pod that is killed and takes its place again, stop from elsewhere."""
    args = (*ARGS, "--python", sys.executable)
    cluster = fresh_cluster(2, 2, launcher="kubernetes", launcher_args=args, name="k2", timeout=2 * PATIENCE)
    (name,) = running.names("statefulsets")
    assert cluster.run("f'{rank}/{world_size}'").values == {r: f"{r}/4" for r in range(4)}
    assert cluster.run("t = torch.ones(1) * rank; dist.all_reduce(t); t.item()").values == dict.fromkeys(range(4), 6.0)
    sent = "t = torch.zeros(1)\nif rank == 0: dist.send(torch.ones(1) * 7, 3)\nif rank == 3: dist.recv(t, 0)\nt.item()"
    assert cluster.run(sent, timeout=PATIENCE).values[3] == 7.0
    assert cluster.run("kept = rank\nimport os; os.environ['POD_NAME']").values == {
        r: f"{name}-{r // 2}" for r in range(4)
    }
    running.kill(f"{name}-1")
    assert eventually(lambda: {r.rank for r in cluster.status().ranks if r.fresh} == {2, 3}, PATIENCE)
    found = cluster.run("t = torch.ones(1); dist.all_reduce(t); t.item(), globals().get('kept')", timeout=PATIENCE)
    assert found.values == {0: (4.0, 0), 1: (4.0, 1), 2: (4.0, None), 3: (4.0, None)}
    cluster.detach()
    jdist.attach("k2").stop()
    assert not running.objects


def test_a_job_on_pods(running: Kubes, tmp_path: Path) -> None:
    """As a user's shell runs it: the script's exit code, and nothing is left in the namespace."""
    for jobs in jobs_in(tmp_path):
        script = jobs.script("train.py", "import sys, torch.distributed as dist\nsys.exit(dist.get_rank() == 3)")
        words = ("--launcher", "kubernetes", "-N", "2", "-n", "2", "--", *ARGS, "--python", sys.executable, "--")
        job = jobs.start(*words, script)
        assert job.wait() == 1, job.said
        assert re.search(r"rank 3 \(node 1, [^)]*\) failed: ScriptExit", job.said), job.said
        assert not running.objects
