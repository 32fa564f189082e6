"""Clusters that are busy in some way when a process of theirs is killed: the phases of the tests of faults."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import jdist
from support import anatomy
from support.waits import eventually

if TYPE_CHECKING:
    pass
AGENT_GRACE = 0.5
SLACK = 20.0
"""Seconds for processes to end on a busy machine once they know that they must."""
LIMITS = {"agent_grace": AGENT_GRACE, "interrupt_grace": 3.0, "idle_timeout": 60.0}
CELL = "import time\nwhile True: time.sleep(0.01)"
COLLECTIVE = "import time\nif rank == 1: time.sleep(100)\ndist.all_reduce(torch.ones(1))"
BIG = "big = torch.ones(1 << 26)"
PHASES = ("idle", "cell", "collective", "pull")


def kill_worker(cluster: jdist.Cluster, rank: int) -> None:
    """Kill, and wait until the cluster knows: a cell sent before that is lost with the rank, as it should be."""
    pid = anatomy.worker(cluster, rank)
    anatomy.kill(pid)
    assert eventually(lambda: pid not in {r.pid for r in cluster.status().ranks})


def are_in_cell(cluster: jdist.Cluster, first: str = "python") -> bool:
    """Whether all ranks are in the cell, the first one in ``first``; a run has started before its ranks begin it."""
    seen = cluster.look()
    inside = [rank for rank, at in seen.items() if at.doing.line]
    return len(inside) == cluster.topology.world_size and seen[0].doing.kind == first


class Phase:
    """A cluster busy with something, and how that ended."""

    def __init__(self, cluster: jdist.Cluster, name: str):
        self.cluster = cluster
        self.name = name
        self.run: jdist.CellRun | None = None
        self.error: BaseException | None = None

    def kill(self, pid: int, *, goes_on: bool = False) -> None:
        """Kill while the phase is on; return when what was going on has ended, unless it goes on."""
        if self.name in ("cell", "collective"):
            self.run = self.cluster.run(CELL if self.name == "cell" else COLLECTIVE, background=True)
            assert eventually(lambda: self.run is not None and self.run.state == "running")
            self._wait_until_inside()
            anatomy.kill(pid)
            if not goes_on:
                self._finish()
        elif self.name == "pull":
            self._kill_while_pulling(pid)
        else:
            anatomy.kill(pid)

    def _wait_until_inside(self) -> None:
        first = "collective" if self.name == "collective" else "python"
        assert eventually(lambda: are_in_cell(self.cluster, first))

    def _finish(self) -> None:
        assert self.run is not None
        try:
            assert self.run.wait(SLACK), "the run did not end"
            self.run.check()
        except (jdist.JdistError, AssertionError) as e:
            self.error = e

    def _kill_while_pulling(self, pid: int) -> None:
        killed = threading.Event()

        def on_progress(_what: str, _done: int, _total: int) -> None:
            if not killed.is_set():
                killed.set()
                anatomy.kill(pid)

        try:
            self.cluster.pull("big", on_progress=on_progress)
        except jdist.JdistError as e:
            self.error = e
        assert killed.is_set()
