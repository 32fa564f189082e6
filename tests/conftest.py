"""What tests with real processes share: a runtime folder of their own, a cluster, and checks that nothing is left.

Every process that a test starts inherits this run's JUPYTER_RUNTIME_DIR, by which it is told from a developer's own.
A test that asks for ``traces`` (in ``tests/cluster`` all do) fails when it leaves a process, a thread, a file
descriptor, shared memory, a connection file or an agent's folder. What belongs to the shared cluster is exempt.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from waits import eventually

import jdist
from jdist.client import find
from jdist.client.blocking import bridge
from jdist.client.link import _shared_context

SHARED_MEMORY = Path("/dev/shm")
IDLE_TIMEOUT = 60.0
"""Seconds after which a cluster ends by itself whose test run was killed."""
ALL_REDUCE = "_h = torch.ones(1); dist.all_reduce(_h); _h.item()"


class Traces:
    """What this test run has on the machine."""

    def __init__(self, runtime: Path):
        self.runtime = runtime
        self.exempt: set[int] = set()
        """Processes whose descendants belong to a cluster that lives on."""
        self.exempt_files: set[str] = set()
        """What this process itself keeps for such a cluster."""
        self._mark = f"JUPYTER_RUNTIME_DIR={runtime}".encode()
        self._clusters: set[str] = set()

    def note_clusters(self) -> None:
        """Remember the clusters that run now, so that their shared memory is known as this run's."""
        self._clusters |= {c.cluster for c in find.connections().values()}

    def processes(self) -> dict[int, str]:
        """``{pid: command line}`` of everything that inherited this run's folder, this process and zombies left out."""
        found: dict[int, str] = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if pid != os.getpid() and self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        return found

    def zombies(self) -> dict[int, str]:
        """Dead children of this process that nobody waited for, and their names."""
        children = psutil.Process().children()
        return {c.pid: c.name() for c in children if c.is_running() and c.status() == psutil.STATUS_ZOMBIE}

    def files(self) -> set[str]:
        """Shared memory, connection files and agents' folders."""
        shared = {str(p) for c in self._clusters for p in SHARED_MEMORY.glob(f"jdist-{c}-*")}
        own = {str(p) for p in self.runtime.glob("jdist-*") if p.suffix != ".log"}
        return shared | own

    def excess(self, before: Snapshot) -> dict[str, Any]:
        """What there is now and was not then; empty if nothing."""
        gc.collect()
        exempt = self._exempt_tree()
        known = before.processes.keys() | exempt
        fds = {fd: _target(fd) for fd in os.listdir("/proc/self/fd")}
        found = {
            "processes": {p: c for p, c in self.processes().items() if p not in known},
            "zombies": {p: name for p, name in self.zombies().items() if p not in before.zombies.keys() | exempt},
            "files": {f for f in self.files() - before.files - self.exempt_files if _owner(f) not in exempt},
            "threads": {t for t in threading.enumerate() if not t.daemon and t not in before.threads},
            "fds": sorted(fds.values()) if len(fds) > before.fds else [],
        }
        return {kind: what for kind, what in found.items() if what}

    def _exempt_tree(self) -> set[int]:
        tree: set[int] = set()
        for pid in self.exempt:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree |= {pid, *(c.pid for c in psutil.Process(pid).children(recursive=True))}
        return tree

    def snapshot(self) -> Snapshot:
        gc.collect()
        return Snapshot(self)


class Snapshot:
    """What was there at a moment."""

    def __init__(self, traces: Traces):
        self.processes = traces.processes()
        self.zombies = traces.zombies()
        self.files = traces.files()
        self.threads = set(threading.enumerate())
        self.fds = len(os.listdir("/proc/self/fd"))


def _owner(path: str) -> int:
    """The process that made a segment; 0 for other files."""
    return int(path[-24:-16], 16) if Path(path).parent == SHARED_MEMORY else 0


def _target(fd: str) -> str:
    with contextlib.suppress(OSError):
        return f"{fd} -> {os.readlink(f'/proc/self/fd/{fd}')}"
    return fd


class SharedCluster:
    """Two nodes of two ranks with gloo, for every test that does not break it. Made anew after one that did."""

    def __init__(self, traces: Traces):
        self._traces = traces
        self._cluster: jdist.Cluster | None = None
        self._broken: jdist.JdistError | None = None

    def get(self) -> jdist.Cluster:
        if self._broken is not None:
            pytest.fail(f"the shared cluster could not be started: {self._broken}")
        if self._cluster is None:
            self._start()
        assert self._cluster is not None
        return self._cluster

    def _start(self) -> None:
        try:
            self._cluster = jdist.start(
                nproc_per_node=2, nnodes=2, backend="gloo", name="shared", timeout=60, idle_timeout=IDLE_TIMEOUT
            )
        except jdist.JdistError as e:
            self._broken = e
            raise
        self._traces.note_clusters()
        self._traces.exempt = {self._cluster.asynchronous.link.connection.pid, *node_pids(self._cluster)}

    def check(self) -> None:
        """The world is whole and idle."""
        cluster = self.get()
        try:
            assert not cluster.status().runs  # first: a run of the test's own that goes on would hold the next one up
            assert cluster.run(ALL_REDUCE, timeout=20).values == dict.fromkeys(range(4), 4.0)
            assert {r.state for r in cluster.status().ranks} == {"idle"}
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        cluster, self._cluster = self._cluster, None
        self._traces.exempt = set()
        if cluster is not None:
            cluster.stop()


def node_pids(cluster: jdist.Cluster) -> set[int]:
    """The agents' pids: their workers' parents."""
    return {psutil.Process(r.pid).ppid() for r in cluster.status().ranks if r.pid}


@pytest.fixture(scope="session")
def runtime_directory() -> Iterator[Path]:
    """A folder of this test run's own for connection files and sockets (whose paths may have 107 characters)."""
    path = Path(tempfile.mkdtemp(prefix="jt-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(path))
        patch.setenv("TMPDIR", str(path))
        patch.setattr(tempfile, "tempdir", str(path))
        # Keeps the debugger's note about frozen modules out of kernels' standard error.
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        yield path
    for child in path.iterdir():
        if child.name.startswith("pymp-"):
            continue  # multiprocessing removes its own at exit, and complains when it is gone
        if child.is_dir():
            shutil.rmtree(child, ignore_errors=True)
        else:
            child.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.rmdir()


@pytest.fixture(scope="session")
def run_traces(runtime_directory: Path) -> Iterator[Traces]:
    traces = Traces(runtime_directory)
    # File descriptors of the whole run: the client's loop, and zmq's own threads, which start with the first socket.
    bridge()
    _shared_context().socket(zmq.PAIR).close()
    yield traces
    left: dict[int, str] = {}

    def nothing_left() -> bool:
        left.clear()
        # multiprocessing's own servers, which tests/worker forks ranks from, end with this process
        left.update({pid: line for pid, line in traces.processes().items() if "from multiprocessing." not in line})
        return not left

    eventually(nothing_left)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"processes were left at the end of the run: {left}"


@pytest.fixture(scope="session")
def shared(run_traces: Traces) -> Iterator[SharedCluster]:
    shared = SharedCluster(run_traces)
    yield shared
    shared.end()


@pytest.fixture
def traces(request: pytest.FixtureRequest, run_traces: Traces, shared: SharedCluster) -> Iterator[Traces]:
    """The leak check."""
    if "cluster" in request.fixturenames:
        shared.get()
    before = run_traces.snapshot()
    yield run_traces
    left = {}

    def nothing_left() -> bool:
        left.clear()
        left.update(run_traces.excess(before))
        return not left

    if not eventually(nothing_left):
        for pid in left.get("processes", {}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in map(Path, left.get("files", ())):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        pytest.fail(f"the test left this behind: {left}")


@pytest.fixture
def cluster(traces: Traces, shared: SharedCluster) -> Iterator[jdist.Cluster]:
    """The shared cluster; it is checked to be whole after the test."""
    yield shared.get()
    shared.check()


@pytest.fixture
def fresh_cluster(traces: Traces) -> Iterator[Callable[..., jdist.Cluster]]:
    """Starts a cluster of the test's own, which may be broken; what is left of it is stopped."""
    started: list[jdist.Cluster] = []

    def start(nproc_per_node: int | str = 2, nnodes: int = 1, **options: Any) -> jdist.Cluster:
        # What an idle node imports ahead takes seconds of CPU time from the other tests.
        usual = {"timeout": 60, "backend": "gloo", "idle_timeout": IDLE_TIMEOUT, "warm": False}
        made = jdist.start(nproc_per_node, nnodes, **{**usual, **options})
        started.append(made)
        traces.note_clusters()
        return made

    yield start
    for made in started:
        with contextlib.suppress(jdist.JdistError):
            made.stop()
        made.detach()
