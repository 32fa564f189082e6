"""What tests of all tiers share: how they are distributed, a runtime folder, a cluster, and checks for leaks.

Every process that a test starts inherits this run's JUPYTER_RUNTIME_DIR, by which it is told from a developer's own.
A test that asks for ``traces`` (in ``tests/cluster`` and ``tests/libraries`` all do) fails when it leaves a process, a
thread, a file descriptor, shared memory, a connection file or an agent's folder. What belongs to the shared cluster is
exempt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import zmq

import jdist
from jdist.client.link import _shared_context
from jdist.client.threads import bridge
from support import forked_nodes
from support.leaks import Traces
from support.shared_cluster import IDLE_TIMEOUT, SharedCluster
from support.waits import eventually

# No test depends on how fast the machine is, so no example has a deadline of its own; in CI the examples are the same
# in every run, so that a failure there is one of the change and not of chance.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("JDIST_CI") else "local")
os.environ.pop("VIRTUAL_ENV", None)  # IPython warns of one that is active in the terminal and is not this one

TESTS = Path(__file__).parent
SHARED_SERVICES = {
    "tests/system/hub": "hub",
    "tests/system/hosts/test_launched_tasks": "slurm",
    "tests/system/hosts/test_launcher_contract": "slurm",
    "tests/system/hosts/test_slurm": "slurm",
}
"""With ``pytest -n``, the tests of one file run one after the other in one process. So do those of these files, which
share what takes long to start: a JupyterHub, Slurm's daemons."""
LONGEST = (
    "system/soak",
    "system/hosts/test_ray",
    "system/hub",
    "system/hosts",
    "cluster/test_faults",
    "cluster/test_st",
)
"""Files that take longest. They come first, so that no process is left alone with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = str(item.path.relative_to(TESTS))
        return next((n for n, path in enumerate(LONGEST) if name.startswith(path)), len(LONGEST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path: str = super()._split_scope(nodeid)
            return next((service for prefix, service in SHARED_SERVICES.items() if path.startswith(prefix)), path)

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def runtime_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of this test run's own for connection files and sockets (whose paths may have 107 characters)."""
    tmp_path_factory.getbasetemp()  # before TMPDIR is another: it must outlive this fixture, for a test that is rerun
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
    with forked_nodes.forking_nodes(runtime_directory) as importer:
        yield from _traces_of_run(Traces(runtime_directory, importer))


def _traces_of_run(traces: Traces) -> Iterator[Traces]:
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
def started_nodes(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local nodes are started as those of users are; other tests fork them (see `forked_nodes`)."""
    monkeypatch.delenv(forked_nodes.ADDRESS, raising=False)


@pytest.fixture
def fresh_cluster(traces: Traces) -> Iterator[Callable[..., jdist.Cluster]]:
    """Starts a cluster of the test's own, which may be broken; what is left of it is stopped."""
    started: list[jdist.Cluster] = []

    def start(nproc_per_node: int | str = 2, nnodes: int = 1, **options: Any) -> jdist.Cluster:
        # What an idle node imports ahead takes seconds of CPU time from the other tests.
        usual = {"timeout": 180, "backend": "gloo", "idle_timeout": IDLE_TIMEOUT, "warm": False}
        made = jdist.start(nproc_per_node, nnodes, **{**usual, **options})
        started.append(made)
        traces.note_clusters()
        return made

    yield start
    for made in started:
        with contextlib.suppress(jdist.JdistError):
            made.stop(now=True)  # what its ranks do at their end is tested where it matters
        made.detach()
