"""Jobs across hosts: `jdist run` in a Slurm batch script, over ssh, by mpirun and on Ray.

A user attaches to them from a host that is none of the job's, and has the same home directory.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jdist
from support.hosts.namespaces import Bed, Node
from support.hosts.rays import Rays
from support.hosts.slurmd import Slurm
from support.hosts.sshd import Sshd
from support.jobs import Jobs, jobs_in, run_words
from support.lacking import lacking
from support.leaks import Traces
from support.waits import eventually

pytestmark = pytest.mark.timeout(400)
ROOT = Path(jdist.__file__).parents[1]
SCRIPT = """
import os, socket, sys
import torch, torch.distributed as dist
t = torch.ones(1)
dist.all_reduce(t)
print("sum", int(t), socket.gethostname(), flush=True)
exec(sys.argv[1])
"""
FAILS = "if dist.get_rank() == 2: sys.exit(7)\ndist.barrier()"
WAITS = "import time; time.sleep(1000)"


@pytest.fixture
def home(bed: Bed, hosts: Bed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that all hosts see at the same path, with Jupyter's runtime files; nothing may be left there."""
    home = bed.directory / "shared"
    (home / "runtime").mkdir(parents=True)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
    traces = Traces(home / "runtime")
    yield home
    monkeypatch.undo()
    assert eventually(lambda: not traces.processes()), traces.processes()
    assert not [p for p in (home / "runtime").glob("jdist-*") if p.suffix != ".log"]
    shutil.rmtree(home)


@pytest.fixture
def jobs(home: Path) -> Iterator[Jobs]:
    for jobs in jobs_in(home):
        jobs.script("train.py", SCRIPT)
        yield jobs


def environment() -> dict[str, str]:
    """What makes this jdist the one that is used, and the home that all hosts share."""
    return {"PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"]}


def env_words() -> list[str]:
    return [word for name, value in environment().items() for word in ("--env", f"{name}={value}")]


def typed_on(node: Node, *words: str) -> str:
    """What a command says on a node."""
    variables = [f"{name}={value}" for name, value in environment().items()]
    return node.run("env", *variables, sys.executable, "-P", "-m", "jdist", *words)


def test_in_a_batch_script_of_slurm(slurm: Slurm, jobs: Jobs, hosts: Bed, home: Path) -> None:
    a, b, c = hosts.nodes
    said = home / "said"

    def submit(*words: str) -> str:
        exports = "".join(f"export {name}='{value}'\n" for name, value in environment().items())
        command = shlex.join(run_words("--launcher", "slurm", *words))
        text = f"#!/bin/sh\n{exports}cd {home}\n{command}\necho code $?\n"
        said.write_text("")
        nodes = (f"--nodelist={a.name},{b.name}", "--nodes=2", f"--output={said}")
        return slurm.call("sbatch", "--parsable", *nodes, text=text)

    def has(text: str) -> bool:
        assert eventually(lambda: text in said.read_text(), 120), said.read_text()
        return True

    submit("-n", "2,1", "train.py", "pass")
    assert has("code 0")
    assert f"] sum 3 {a.name}" in said.read_text()
    assert f"[2] sum 3 {b.name}" in said.read_text()
    assert eventually(lambda: not slurm.jobs())

    submit("-n", "2,1", "--name", "held", "--hold", "train.py", FAILS)
    assert has("%dist attach held")
    assert "held" in typed_on(c, "list")
    assert "ready" in typed_on(c, "status", "--cluster", "held")
    assert "cluster held is stopped" in typed_on(c, "stop", "held")
    assert has("code 7")
    assert eventually(lambda: not slurm.jobs())

    number = submit("-n", "1", "train.py", WAITS)
    assert has("[1] sum 2")
    slurm.call("scancel", "--signal=TERM", "--full", number)
    assert has("SIGTERM: interrupting all ranks")
    assert eventually(lambda: not slurm.jobs())


def test_over_ssh(logins: Sshd, jobs: Jobs, hosts: Bed) -> None:
    b = hosts.nodes[1].name
    words = ("--launcher", "ssh", "--hosts", "a:2,b:1", *env_words())
    job = jobs.start(*words, "train.py", FAILS)
    assert job.wait() == 7, job.said
    assert f"[2] sum 3 {b}" in job.out
    job = jobs.start(*words, "train.py", WAITS)
    job.until(f"sum 3 {b}")
    job.signal(signal.SIGKILL)
    job.wait()


def test_by_mpirun(logins: Sshd, jobs: Jobs, hosts: Bed) -> None:
    if shutil.which("mpirun.openmpi") is None:
        lacking("Open MPI's mpirun is not installed (openmpi-bin)")
    net = f"{hosts.head.rpartition('.')[0]}.0/24"
    mpirun = ["mpirun.openmpi", "--mca", "plm_rsh_agent", f"ssh -F {logins.home}/.ssh/config"]
    mpirun += [w for name in ("oob", "btl") for w in ("--mca", f"{name}_tcp_if_include", net)]
    words = ("--launcher", "mpi", "--hosts", "a:2,b:1", *env_words(), "--", *mpirun, "--")
    job = jobs.start(*words, "train.py", FAILS)
    assert job.wait() == 7, job.said
    assert f"[2] sum 3 {hosts.nodes[1].name}" in job.out


def test_tasks_that_a_launcher_has_started_together_are_one_job(slurm: Slurm, jobs: Jobs, hosts: Bed) -> None:
    if shutil.which("mpirun.openmpi") is None:
        lacking("Open MPI's mpirun is not installed (openmpi-bin)")
    env = {**os.environ, **environment()}
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "3"]
    job = jobs.start("train.py", FAILS, env=env, before=mpirun)
    assert job.wait() == 7, job.said
    assert sum("sum 3" in line for line in job.out) >= 1
    a, b, c = (n.name for n in hosts.nodes)
    srun = ["srun", "--nodes=2", f"--exclude={c}", "--ntasks-per-node=1", f"--chdir={jobs.directory}"]
    job = jobs.start("-n", "2", "train.py", "pass", env=env, before=srun)
    assert job.wait() == 0, job.said
    assert {a, b} == {line.split()[-1] for line in job.out if "sum 4" in line}


def test_on_ray(rays: Rays, jobs: Jobs, hosts: Bed) -> None:
    words = ("--launcher", "ray", "-N", "2", "-n", "2", "--bind", hosts.head, *env_words(), "--", "--address")
    job = jobs.start(*words, rays.address, "train.py", FAILS)
    assert job.wait() == 7, job.said
    assert sum("sum 4" in line for line in job.out) >= 2
