"""Testing: what every launcher must pass. A package that brings a launcher of its own runs it in its own tests.

It needs pytest, and a place where the launcher can start two nodes::

    from jdist.testing import LauncherContract


    class TestMyLauncher(LauncherContract):
        options = {"launcher": "mine", "launcher_args": ["--queue=debug"]}
"""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import psutil
import pytest

import jdist
from jdist.core.settings import Settings
from jdist.launch.base import find_launcher
from jdist.wire.transport.invitations import PREFIX, JoinLine

_ALL_REDUCE = "_t = torch.ones(1); dist.all_reduce(_t); _t.item()"
_KILL_AGENT = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"


class LauncherContract:
    """Tests of one launcher. Subclasses set the attributes."""

    options: ClassVar[dict[str, Any]] = {}  # Arguments of `jdist.start`, such as `launcher`, `launcher_args`, `hosts`.
    nnodes: ClassVar[int] = 2
    nproc_per_node: ClassVar[int] = 1
    can_relaunch: ClassVar[bool] = True  # Whether `Launcher.relaunch` can start another agent on a node.
    timeout: ClassVar[float] = 180.0  # Seconds for each wait.

    @pytest.fixture
    def launched(self) -> Iterator[jdist.Cluster]:
        """A cluster that the launcher has started."""
        usual: dict[str, Any] = {"backend": "gloo", "timeout": self.timeout, "idle_timeout": self.timeout}
        cluster = jdist.start(self.nproc_per_node, self.nnodes, **{**usual, **self.options})
        try:
            yield cluster
        finally:
            with contextlib.suppress(jdist.JdistError):
                cluster.stop()
            cluster.detach()

    def test_settings_are_completed_before_anything_is_started(self) -> None:
        settings = Settings(name="contract", launcher=self.options.get("launcher", "local"))
        with contextlib.suppress(jdist.UsageError):  # it may need more than a name, and must say so by this error
            assert find_launcher(settings.launcher).complete(settings).nnodes >= 1

    def test_a_cluster_from_start_to_stop(self, launched: jdist.Cluster) -> None:
        size = self.nnodes * self.nproc_per_node
        assert launched.world_size == size
        assert len(launched.nodes) == self.nnodes
        assert launched.run(_ALL_REDUCE, timeout=self.timeout).values == dict.fromkeys(range(size), float(size))
        readable = psutil.process_iter(["cmdline", "environ"])
        cluster = launched.asynchronous.link.connection.cluster
        shown = [p.pid for p in readable if _has_line(f"{p.info['cmdline']} {p.info['environ']}", cluster)]
        assert not shown, "other users can read a join line in argv, and child processes in the environment"
        pids = [row.pid for row in launched.status().ranks]
        here = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]  # nodes may be other machines
        name = launched.name
        launched.stop()
        assert not psutil.wait_procs(here, self.timeout)[1]
        assert name not in {c.cluster for c in jdist.list_clusters()}

    def test_a_node_whose_agent_dies_costs_no_other_node_and_can_be_started_again(
        self, launched: jdist.Cluster
    ) -> None:
        if self.nnodes < 2:
            pytest.skip("it takes two nodes")
        last, size = self.nnodes - 1, self.nnodes * self.nproc_per_node
        launched.run("kept = rank", timeout=self.timeout)
        nodes = launched.nodes
        launched.run(_KILL_AGENT, ranks=f"node={last}", background=True)
        assert self._eventually(lambda: not launched.facts.hostnames[last])
        assert launched.pull("kept", ranks=[0]) == {0: 0}
        if not self.can_relaunch:
            with pytest.raises(jdist.JdistError):
                launched.restart(ranks=f"node={last}")
            return
        launched.restart(ranks=f"node={last}")
        assert launched.nodes == nodes, "on the host where it was"
        assert launched.run(_ALL_REDUCE, timeout=self.timeout).values == dict.fromkeys(range(size), float(size))
        assert launched.pull("kept", ranks=[0]) == {0: 0}

    def _eventually(self, is_so: Any) -> bool:
        deadline = time.monotonic() + self.timeout
        while not is_so() and time.monotonic() < deadline:
            time.sleep(0.05)
        return bool(is_so())


def _has_line(text: str, cluster: str) -> bool:
    """Whether a join line of this cluster is in the text; other clusters may be started beside it."""
    for word in re.findall(rf"{PREFIX}\.[\w-]+", text):
        with contextlib.suppress(jdist.UsageError):
            if JoinLine.decode(word).cluster == cluster:
                return True
    return False
