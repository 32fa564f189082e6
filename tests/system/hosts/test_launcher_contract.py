"""The contract of launchers, on nodes in namespaces of their own: ssh, Slurm and MPI."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import jdist
from jdist.testing import LauncherContract
from support.hosts.namespaces import Bed
from support.hosts.slurmd import Slurm
from support.hosts.sshd import Sshd
from support.lacking import lacking


@pytest.fixture
def env(traces: Any) -> dict[str, str]:
    """What makes this jdist the one that is imported on the nodes, and its processes this test run's."""
    root = str(Path(jdist.__file__).parents[1])
    return {"PYTHONPATH": root, "JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"]}


class TestSsh(LauncherContract):
    @pytest.fixture(autouse=True)
    def _two_hosts(self, logins: Sshd, env: dict[str, str]) -> None:
        self.options = {"launcher": "ssh", "hosts": "a:1,b:1", "env": env}


class TestSlurm(LauncherContract):
    @pytest.fixture(autouse=True)
    def _a_scheduler(self, slurm: Slurm, env: dict[str, str]) -> None:
        self.options = {"launcher": "slurm", "env": env}


class TestMpi(LauncherContract):
    @pytest.fixture(autouse=True)
    def _two_hosts(self, logins: Sshd, hosts: Bed, env: dict[str, str]) -> None:
        if shutil.which("mpirun.openmpi") is None:
            lacking("Open MPI's mpirun is not installed (openmpi-bin)")
        net = f"{hosts.head.rpartition('.')[0]}.0/24"
        interfaces = [word for name in ("oob", "btl") for word in ("--mca", f"{name}_tcp_if_include", net)]
        login = ["--mca", "plm_rsh_agent", f"ssh -F {logins.home}/.ssh/config"]
        args = ["mpirun.openmpi", *login, *interfaces, "--host", "a,b"]
        self.options = {"launcher": "mpi", "launcher_args": args, "env": env}
