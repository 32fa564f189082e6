"""Nodes from mpirun: real ones, over ssh to hosts of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import jdist
from support.cells import ALL_REDUCE, SEND, WHERE
from support.hosts.namespaces import Bed
from support.hosts.sshd import Sshd
from support.lacking import lacking
from support.waits import eventually

Start = Callable[..., jdist.Cluster]
ROOT = Path(jdist.__file__).parents[1]
AS_A_TASK = "[v for v in os.environ if v.startswith(('OMPI_MCA', 'OMPI_UNIVERSE', 'PMIX_'))]"


@pytest.fixture
def on_openmpi(logins: Sshd, hosts: Bed, fresh_cluster: Start) -> Start:
    """Starts a cluster by Open MPI, which asks for the nodes in the words of its own."""
    if shutil.which("mpirun.openmpi") is None:
        lacking("Open MPI's mpirun is not installed (openmpi-bin)")
    net = f"{hosts.head.rpartition('.')[0]}.0/24"
    ssh = f"ssh -F {logins.home}/.ssh/config"
    args = [w for name in ("oob", "btl") for w in ("--mca", f"{name}_tcp_if_include", net)]
    args = ["mpirun.openmpi", "--mca", "plm_rsh_agent", ssh, *args]

    def start(nproc: str | None, nnodes: int | None, *more: str, **options: Any) -> jdist.Cluster:
        return fresh_cluster(
            nproc,
            nnodes,
            launcher="mpi",
            env=environment(),
            **{"timeout": 90, "launcher_args": [*args, *more], **options},
        )

    return start


def environment() -> dict[str, str]:
    return {"JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"], "MARK": "seen there"}


def engines(name: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["name"]) if p.info["name"].startswith(name)]


def agent_of(cluster: jdist.Cluster, rank: int) -> psutil.Process:
    agent = psutil.Process(cluster.status().ranks[rank].pid).parent()
    assert agent is not None
    return agent


def test_openmpi_from_hello_to_the_end(on_openmpi: Start, logins: Sshd, hosts: Bed, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a slots=2 # the first\nb slots=1\nc slots=1\n")
    own = on_openmpi(None, None, "--hostfile", str(hostfile))
    a, b, c = (n.name for n in hosts.nodes)
    assert own.run(WHERE, timeout=30).values == {0: (a, 0), 1: (a, 1), 2: (b, 0), 3: (c, 0)}
    assert own.run(f"{AS_A_TASK}, os.environ['MARK']", timeout=30).values == {r: ([], "seen there") for r in range(4)}
    assert own.run(SEND, timeout=30).values == {0: 0.0, 1: 0.0, 2: 0.0, 3: 7.0}
    assert own.run(ALL_REDUCE, timeout=30).values == dict.fromkeys(range(4), 4.0)
    own.run("kept = rank")

    keeper = agent_of(own, 2).parent()
    assert keeper is not None
    daemon = keeper.parent()
    assert daemon is not None
    assert daemon.name() == "orted"
    daemon.kill()  # as when the host goes down, after which mpirun ends all that it has started
    agent_of(own, 2).kill()
    assert eventually(lambda: not engines("orted"))
    assert eventually(lambda: not own.facts.hostnames[1])
    assert own.pull("kept", ranks=[0, 1, 3]) == {0: 0, 1: 1, 3: 3}
    own.restart(ranks=[2])
    found = own.run(f"import socket; {ALL_REDUCE}, socket.gethostname(), globals().get('kept')", timeout=30)
    assert {r: v[1:] for r, v in found.values.items()} == {0: (a, 0), 1: (a, 1), 2: (b, None), 3: (c, 3)}
    own.stop()
    assert eventually(lambda: not engines("mpirun") and not engines("orted"))


def test_what_mpirun_could_not_do_is_told_in_its_own_words(on_openmpi: Start) -> None:
    with pytest.raises(
        jdist.LaunchError,
        match=r"nodes 0-1: mpirun.openmpi ended with code \d+: .*Permission denied.*; .*ssh-copy-id HOST",
    ):
        on_openmpi("1", 2, "--host", "a,stranger")
    with pytest.raises(jdist.LaunchError, match=r"nodes 0-1: mpirun.openmpi ended with code \d+: .*--no-such"):
        on_openmpi("1", 2, "--no-such")
    with pytest.raises(jdist.UsageError, match="-N says how many nodes"):
        on_openmpi("1", None)


def test_mpich_reads_the_line_from_a_file_and_the_cluster_outlives_kernel_and_mpiexec(
    logins: Sshd, hosts: Bed, traces: Any, fresh_cluster: Start
) -> None:
    if shutil.which("mpiexec.hydra") is None:
        lacking("MPICH's mpiexec is not installed (mpich)")
    login = logins.home / "login"
    login.write_text(f'#!/bin/sh\nexec ssh -F {logins.home}/.ssh/config "$@"\n')
    login.chmod(0o755)
    words = [sys.executable, "-m", "jdist", "start", "--launcher", "mpi", "--hosts", "a:1,b:1", "--name", "mpich"]
    words += [w for name, value in environment().items() for w in ("--env", f"{name}={value}")]
    words += ["--idle-timeout", "60", "--", "mpiexec.hydra", "-launcher-exec", str(login), "-iface", hosts.bridge]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    cluster = jdist.attach("mpich")
    try:
        traces.note_clusters()
        assert not list(logins.home.glob(".jdist-join-*")), "the line is on no disk any more"
        a, b, _ = (n.name for n in hosts.nodes)
        assert cluster.run(WHERE, timeout=30).values == {0: (a, 0), 1: (b, 0)}
        for engine in engines("mpiexec"):
            engine.kill()
        assert eventually(lambda: not engines("hydra_pmi"))
        assert cluster.run(ALL_REDUCE, timeout=30).values == {0: 2.0, 1: 2.0}
    finally:
        cluster.stop()
        cluster.detach()
