"""Nodes from Slurm: a real one, with a slurmd on hosts of their own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import jdist
from jdist.core.settings import Settings
from jdist.launch.base import LaunchPlan
from jdist.launch.slurm import SlurmLauncher
from support.cells import ALL_REDUCE, SEND, WHERE
from support.hosts.namespaces import Bed
from support.hosts.slurmd import Slurm
from support.waits import eventually

Start = Callable[..., jdist.Cluster]

AS_A_TASK = "[v for v in os.environ if v.startswith(('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_STEP'))]"


@pytest.fixture
def on_slurm(slurm: Slurm, hosts: Bed, fresh_cluster: Start) -> Start:
    def start(nproc: str = "2,1,1", nnodes: int = 3, **options: Any) -> jdist.Cluster:
        return fresh_cluster(nproc, nnodes, launcher="slurm", **{"timeout": 90, **options})

    return start


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 — nothing wakes a waiter when Slurm moves on
            await asyncio.sleep(0.05)


def kill_agent(cluster: jdist.Cluster, rank: int) -> None:
    parent = psutil.Process(cluster.status().ranks[rank].pid).parent()
    parent.kill()


def test_a_job_of_its_own_from_hello_to_its_end(on_slurm: Start, slurm: Slurm, hosts: Bed) -> None:
    own = on_slurm(launcher_args=["--comment=mine"])
    a, b, c = (n.name for n in hosts.nodes)
    assert own.run(WHERE, timeout=30).values == {0: (a, 0), 1: (a, 1), 2: (b, 0), 3: (c, 0)}
    assert own.run(AS_A_TASK, timeout=30).values == {r: [] for r in range(4)}
    assert own.run(SEND, timeout=30).values == {0: 0.0, 1: 0.0, 2: 0.0, 3: 7.0}
    assert own.run(ALL_REDUCE, timeout=30).values == dict.fromkeys(range(4), 4.0)
    assert [j.split()[2] for j in slurm.jobs()] == ["RUNNING"]
    own.run("kept = rank")
    kill_agent(own, 2)
    assert eventually(lambda: not own.facts.hostnames[1], 20)
    assert own.pull("kept", ranks=[0, 1, 3]) == {0: 0, 1: 1, 3: 3}
    own.restart(ranks=[2])
    found = own.run(f"import socket; {ALL_REDUCE}, socket.gethostname(), globals().get('kept')", timeout=30).values
    assert found == {0: (4.0, a, 0), 1: (4.0, a, 1), 2: (4.0, b, None), 3: (4.0, c, 3)}

    slurm.call("scontrol", "update", f"NodeName={c}", "State=DOWN", "Reason=bad disk")
    assert eventually(lambda: not own.facts.hostnames[2], 30)
    assert own.pull("rank", ranks=[0, 1, 2]) == {0: 0, 1: 1, 2: 2}
    with pytest.raises(jdist.LaunchError, match=f"Slurm has taken it from the job: {c} is .*; remove rank node=2"):
        own.restart(ranks=[3])
    own.stop()
    assert eventually(lambda: not slurm.jobs(), 20)


def test_a_start_that_waits_too_long_or_fails_says_what_slurm_says(on_slurm: Start, slurm: Slurm) -> None:
    number = slurm.allocate(3, "--exclusive")
    late = r"0 of 1 nodes here; missing: node 0 after 3 s; job \d+ is pending: Resources"
    with pytest.raises(jdist.LaunchError, match=late):
        on_slurm("1", nnodes=1, timeout=3)
    with pytest.raises(jdist.LaunchError, match=r"nodes 0-2: srun ended with code 255: .*option '--no-such'"):
        on_slurm("1", launcher_args=[f"--jobid={number}", "--no-such"])
    slurm.release()


def test_inside_an_allocation_a_step_of_its_job(
    on_slurm: Start, slurm: Slurm, hosts: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = slurm.allocate(3)
    monkeypatch.setenv("SLURM_JOB_ID", number)
    monkeypatch.setenv("SLURM_NTASKS", "1")  # what a notebook in a job has around it is not for the agents' step
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "1")
    own = on_slurm("2,1", nnodes=2)
    a, b, c = (n.name for n in hosts.nodes)
    own.add_node(1, timeout=60)
    assert own.run(WHERE, timeout=30).values == {0: (a, 0), 1: (a, 1), 2: (b, 0), 3: (c, 0)}
    assert own.run(SEND, timeout=30).values == {0: 0.0, 1: 0.0, 2: 0.0, 3: 7.0}
    assert own.run(ALL_REDUCE, timeout=30).values == dict.fromkeys(range(4), 4.0)
    with pytest.raises(jdist.LaunchError, match=rf"job {number} has no node left for node 3"):
        own.add_node(1, timeout=60)
    own.stop()
    assert eventually(lambda: not slurm.call("squeue", "-h", "-s", "-o", "%i"), 20)
    assert [j.split()[1:] for j in slurm.jobs()] == [["a-users-own", "RUNNING"]], "the allocation is its owner's"

    with pytest.raises(jdist.UsageError, match=rf"-N 4: job {number} .* has 3 nodes"):
        on_slurm("1", nnodes=4)
    slurm.release()
    with pytest.raises(jdist.UsageError, match=rf"job {number} was cancelled .*; start where SLURM_JOB_ID is not set"):
        on_slurm()


def test_a_job_that_waits_says_why_and_is_cancelled_by_whoever_stops_its_cluster(slurm: Slurm, tmp_path: Path) -> None:
    number = slurm.allocate(2, "--exclusive")
    settings = SlurmLauncher.complete(Settings(name="waits", nnodes=3, launcher="slurm"))
    plan = LaunchPlan(settings, str(tmp_path / "log"))

    async def line() -> str:
        return "which no node will read"

    async def submit() -> SlurmLauncher:
        launcher = SlurmLauncher(plan)
        await launcher.launch(line())
        await until(lambda: "is pending: Resources" in launcher.describe())
        assert launcher.failures() == {}
        return launcher

    async def scenario() -> None:
        given_up = await submit()
        await given_up.end()
        assert [j.split()[0] for j in slurm.jobs()] == [number]
        launcher = await submit()
        await SlurmLauncher(plan).remove_leftovers()  # another client's
        assert [j.split()[0] for j in slurm.jobs()] == [number], "the other job is not this cluster's"
        await until(lambda: len(launcher.failures()) == 3)
        assert {why.partition(" was cancelled")[1] for why in launcher.failures().values()} == {" was cancelled"}
        await launcher.end()

    asyncio.run(scenario())
    slurm.release()


def test_what_slurm_refuses_is_told(on_slurm: Start) -> None:
    with pytest.raises(jdist.LaunchError, match=r"sbatch refused: .*invalid partition"):
        on_slurm(launcher_args=["--partition=none"])


def test_a_job_that_is_cancelled_from_outside(on_slurm: Start, slurm: Slurm) -> None:
    own = on_slurm("1", nnodes=1)
    number = slurm.jobs()[0].split()[0]
    run = own.run("import time; time.sleep(90)", background=True)
    assert eventually(lambda: run.state == "running", 10)
    slurm.call("scancel", number)
    assert run.wait(30)
    with pytest.raises(jdist.RankLost, match=rf"ended by SIGTERM: job {number} (is being ended|was cancelled) "):
        run.check()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all hosts see."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize("options", [["--signal=USR1"], []], ids=["announced", "cancelled"])
def test_a_job_is_saved_before_it_ends(
    on_slurm: Start, slurm: Slurm, tmp_path: Path, shared: Path, options: list[str]
) -> None:
    """Slurm signals every process of the step; the ranks outlive that, and a loop is saved at a call of save_if_due."""
    own = on_slurm("2", nnodes=2)
    number = slurm.jobs()[0].split()[0]
    with pytest.raises(jdist.UsageError, match=r"ranks 2-3: .* does not see .*name a folder that all nodes share"):
        own.save(str(tmp_path / "each host has its own"))
    directory = shared / "saved"
    own.autosave(str(directory), every=3600.0)
    loop = "import jdist, time\nfor step in range(10**6):\n    time.sleep(0.01)\n    jdist.save_if_due()"
    run = own.run(loop, background=True)
    assert eventually(lambda: run.state == "running", 10)
    slurm.call("scancel", *options, number)
    assert eventually(lambda: list(directory.glob("save-*")), 30)
    if not options:
        assert run.wait(30)
    else:  # the job goes on
        assert not run.is_done
        own.interrupt()
        assert run.wait(30)
        assert own.run("step > 0").values == dict.fromkeys(range(4), True)


def test_a_job_that_reaches_its_time_limit(on_slurm: Start, slurm: Slurm) -> None:
    own = on_slurm("1", nnodes=1, launcher_args=["--time=1"])
    number = slurm.jobs()[0].split()[0]
    slurm.call("scontrol", "update", f"JobId={number}", "EndTime=now+2")  # which it notices within 30 s
    run = own.run("import time; time.sleep(90)", background=True)
    assert run.wait(60)
    limit = rf"job {number} has reached its time limit .*-- --time=HH:MM:SS asks for more"
    with pytest.raises(jdist.RankLost, match=f"ended by SIGTERM: {limit}"):
        run.check()
    with pytest.raises(jdist.LaunchError, match=r"node 0 cannot be started again: (its job is over|job .* time limit)"):
        own.restart(ranks=[0])
