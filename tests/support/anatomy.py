"""Anatomy: which process of a running cluster is which, for tests that kill one."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

import jdist
from support.waits import eventually


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)


def controller(cluster: jdist.Cluster) -> int:
    return cluster.asynchronous.link.connection.pid


def worker(cluster: jdist.Cluster, rank: int) -> int:
    return next(r.pid for r in cluster.status().ranks if r.rank == rank)


def agent(cluster: jdist.Cluster, node_rank: int) -> int:
    """A worker's parent."""
    first = cluster.topology.first_rank(node_rank)
    return psutil.Process(worker(cluster, first)).ppid()


def forkserver(cluster: jdist.Cluster, node_rank: int) -> int:
    """The child of the agent that forks workers: the first one, or the warm one that has taken its place."""

    def alone() -> list[int]:
        found = []
        for child in psutil.Process(agent(cluster, node_rank)).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() in {"jdist-fork", "jdist-warm"}:
                    found.append(child.pid)
        return found if len(found) == 1 else []  # while it warms up, there is a second one that will take its place

    (pid,) = eventually(alone, 20)
    return pid


def store(cluster: jdist.Cluster) -> int:
    (pid,) = stores(cluster)
    return pid


def stores(cluster: jdist.Cluster) -> list[int]:
    return _children_writing_to(cluster, 0, "store.log")


def _children_writing_to(cluster: jdist.Cluster, node_rank: int, name: str) -> list[int]:
    found = []
    for child in psutil.Process(agent(cluster, node_rank)).children():
        with contextlib.suppress(OSError):  # it has just ended
            if os.path.basename(os.readlink(f"/proc/{child.pid}/fd/1")) == name:
                found.append(child.pid)
    return found


def lives(pid: int) -> bool:
    """Whether the process is there, as more than a zombie."""
    return status(pid) not in ("", psutil.STATUS_ZOMBIE)


def status(pid: int) -> str:
    """psutil's word for it; "" where there is no such process."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return ""
