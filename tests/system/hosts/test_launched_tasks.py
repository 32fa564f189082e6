"""Tasks of real launchers: one a node makes the node's ranks, one a rank is the rank with the launcher's number."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import jdist
from jdist.core.messages.membership import LauncherTask
from jdist.launch.base import Launcher
from support.hosts.namespaces import Bed
from support.hosts.slurmd import Slurm
from support.hosts.tasking import JOIN, TaskLauncher, wait_all
from support.lacking import lacking
from support.waits import eventually

pytestmark = pytest.mark.timeout(240)  # every task imports torch for itself
Start = Callable[..., jdist.Cluster]
Commands = Callable[[str], list[list[str]]]
Tasking = Callable[[Path, Commands], str]
Offer = Callable[[str, type[Launcher]], None]
LONG = 30.0
"""Seconds within which what takes moments is done on a machine with other work, too."""
SECRETS = {"JUPYTERHUB_API_TOKEN": "secret", "JPY_API_TOKEN": "secret", "JUPYTERHUB_USER": "u"}
MEET = """
import os
t = torch.ones(1) * rank
dist.all_reduce(t)
if rank == 0:
    dist.send(t + 1, world_size - 1)
elif rank == world_size - 1:
    dist.recv(t, 0)
own = tuple(int(os.environ[n]) for n in ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"))
alien = ("TORCHELASTIC_ERROR_FILE", "OMPI_MCA", "PMIX_", "SLURM_PROCID", "SLURM_NTASKS", "JUPYTERHUB_", "JPY_")
of_others = sorted(n for n in os.environ if n.startswith(alien))
assert own == (rank, local_rank, node_rank, int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]), world_size), own
own[:4], t.item(), of_others
"""
"""A rank's number, its numbers on its node and the node's; what a sum gives, on the last rank one more; what leaks."""


def numbers(*of_ranks: tuple[int, int, int, int]) -> dict[int, object]:
    """What MEET gives for ranks that are ``(rank, local_rank, node_rank, local_world_size)``."""
    last, total = len(of_ranks) - 1, float(sum(range(len(of_ranks))))
    return {r: (own, total + (r == last), []) for r, own in enumerate(of_ranks)}


@pytest.fixture
def tasking(traces: object, offer: Offer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasking]:
    """Has the launcher ``tasks`` run such commands, among what a Hub tells a notebook in confidence."""

    def prepare(directory: Path, commands: Commands) -> str:
        monkeypatch.setattr(TaskLauncher, "commands", staticmethod(commands), raising=False)
        monkeypatch.setattr(TaskLauncher, "directory", directory, raising=False)
        monkeypatch.setattr(TaskLauncher, "env", {**SECRETS, "OMP_NUM_THREADS": "1"})
        return "tasks"

    offer("tasks", TaskLauncher)
    yield prepare
    wait_all()


def mpirun(count: int, *command: str) -> list[str]:
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--continuous", "-np", str(count)]
    return [program("mpirun.openmpi"), *options, *command]


def program(name: str) -> str:
    if shutil.which(name) is None:
        lacking(f"there is no {name}")
    return name


def agent_pid(cluster: jdist.Cluster, rank: int) -> int:
    return psutil.Process(next(r.pid for r in cluster.status().ranks if r.rank == rank)).ppid()


def test_mpiruns_tasks_are_the_ranks_and_the_loss_of_one_is_that_of_its_rank(
    tmp_path: Path, tasking: Tasking, fresh_cluster: Start
) -> None:
    lines: list[str] = []

    def commands(path: str) -> list[list[str]]:
        lines.append(path)
        return [mpirun(4, *JOIN, path)]

    own = fresh_cluster(2, 2, timeout=110, launcher=tasking(tmp_path, commands))
    assert own.run(MEET, timeout=LONG).values == numbers((0, 0, 0, 4), (1, 1, 0, 4), (2, 2, 0, 4), (3, 3, 0, 4))
    assert (own.topology.nnodes, len(own.nodes)) == (1, 1)
    assert f"rank 3 (node 0, {own.nodes[0]})" == own.topology.where(3)
    own.run("kept = rank * 10")

    os.kill(next(r.pid for r in own.status().ranks if r.rank == 1), signal.SIGKILL)
    assert eventually(lambda: own.generation == 2, LONG), "a worker's death is mended by the task's agent"
    assert eventually(lambda: own.facts.phase == "ready", LONG), own.status()
    os.kill(agent_pid(own, 3), signal.SIGKILL)
    assert eventually(lambda: own.facts.hostnames[3] == "", LONG)
    assert [r.state for r in own.status().ranks].count("gone") == 1
    again = subprocess.Popen([*JOIN, "--node-rank", "3", lines[0]], start_new_session=True)
    try:
        assert eventually(lambda: own.facts.phase == "ready" and own.generation == 3, LONG), own.status()
        assert own.run(MEET, timeout=LONG).values == numbers((0, 0, 0, 4), (1, 1, 0, 4), (2, 2, 0, 4), (3, 3, 0, 4))
        assert own.run("'kept' in globals()", timeout=LONG).values == {0: True, 1: False, 2: True, 3: False}
        own.stop()
        again.wait(LONG)
    finally:
        again.kill()
        again.wait()


def test_a_number_of_tasks_that_fits_neither_is_refused_with_what_does(
    tmp_path: Path, tasking: Tasking, fresh_cluster: Start
) -> None:
    with pytest.raises(jdist.LaunchError) as caught:
        fresh_cluster(2, 2, timeout=110, launcher=tasking(tmp_path, lambda path: [mpirun(3, *JOIN, path)]))
    says = "mpirun started 3 tasks; cluster"
    assert says in str(caught.value)
    assert "start 2 (one a node) or 4 (one a rank)" in str(caught.value)


def test_sruns_tasks_are_the_ranks_however_it_spreads_them(
    hosts: Bed, slurm: Slurm, tasking: Tasking, fresh_cluster: Start
) -> None:
    spread = ["srun", "--job-name=tasks", "-N2", "--ntasks-per-node=2", "--distribution=cyclic", "--input=none"]
    own = fresh_cluster(2, 2, timeout=110, launcher=tasking(hosts.directory, lambda path: [[*spread, *JOIN, path]]))
    assert own.run(MEET, timeout=LONG).values == numbers((0, 0, 0, 2), (1, 0, 1, 2), (2, 1, 0, 2), (3, 1, 1, 2))
    assert own.select("node=1") == (1, 3)
    own.stop()
    assert wait_all() == [0]


# In one piece: mpiexec passes on what it reads, and a line and its end may come apart.
WHO = r'import os, jdist.core.launchers as j; os.write(1, f"{j.read_task(os.environ)}\n".encode())'


def test_a_batch_script_is_not_the_task_of_its_job(hosts: Bed, slurm: Slurm) -> None:
    out = hosts.directory / "batch.out"
    home = Path(jdist.__file__).parents[1]
    script = f"#!/bin/sh\nenv | grep -c ^SLURM_PROCID=\nPYTHONPATH={home} {sys.executable} -c '{WHO}'\n"
    slurm.call("sbatch", "--wait", "-N2", "-n4", f"--output={out}", text=script)
    assert out.read_text().split() == ["1", "None"]


def test_mpichs_tasks_know_their_numbers() -> None:
    command = [program("mpiexec.hydra"), "-np", "2", sys.executable, "-c", WHO]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONG).stdout.splitlines()
    assert sorted(said) == [str(LauncherTask("mpiexec", r, 2, r, 2)) for r in range(2)]


def torchrun(bed: Bed, per_node: int, path: str) -> list[list[str]]:
    """What a user starts on each of two nodes."""
    first = bed.nodes[0]
    program = str(Path(sys.executable).with_name("torchrun"))  # of the environment, which need not be activated
    words = [program, "--nnodes", "2", "--nproc-per-node", str(per_node), "--rdzv-backend", "c10d"]
    words += ["--rdzv-id", f"j{per_node}", "--rdzv-endpoint", f"{first.address}:{29600 + per_node}", "-m"]
    return [node.command([*words, "jdist", "join", path]) for node in bed.nodes[:2]]


def test_torchrun_once_per_task(hosts: Bed, tasking: Tasking, fresh_cluster: Start) -> None:
    name = tasking(hosts.directory, lambda path: torchrun(hosts, 2, path))
    own = fresh_cluster(2, 2, timeout=110, launcher=name)
    found = own.run(MEET, timeout=LONG).values
    # which node comes first is for torchrun to say
    assert found == numbers((0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 2), (3, 1, 1, 2))
    assert sorted(own.nodes) == sorted(n.name for n in hosts.nodes[:2])
    assert [r.hostname for r in own.status().ranks] == [own.nodes[0]] * 2 + [own.nodes[1]] * 2
    assert own.select("node=1") == (2, 3)
    own.stop()
    assert wait_all() == [0, 0]


def test_torchrun_once_per_node(hosts: Bed, tasking: Tasking, fresh_cluster: Start) -> None:
    lines: list[str] = []

    def commands(path: str) -> list[list[str]]:
        lines.append(path)
        return torchrun(hosts, 1, path)

    name = tasking(hosts.directory, commands)
    own = fresh_cluster("2,1", 2, timeout=110, launcher=name)
    assert own.run(MEET, timeout=LONG).values == numbers((0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 1))
    os.kill(agent_pid(own, 2), signal.SIGKILL)
    assert eventually(lambda: own.facts.hostnames[1] == "", LONG)
    lost = next(n for n in hosts.nodes if n.name == own.status().ranks[2].hostname)
    again = subprocess.Popen(lost.command([*JOIN, "--node-rank", "1", lines[0]]), start_new_session=True)
    try:
        assert eventually(lambda: own.facts.phase == "ready" and own.generation == 2, LONG)
        assert own.run(MEET, timeout=LONG).values == numbers((0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 1))
        own.stop()
        again.wait(LONG)
    finally:
        again.kill()
        again.wait()
    for process in TaskLauncher.started:
        process.terminate()  # the torchrun whose task has lived waits some minutes for the other
