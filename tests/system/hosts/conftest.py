"""Tests in this folder put real networks between their processes, or skip with the reason why they cannot.

``bed``: the nodes, up for the session (see namespaces.py). Daemons that a test puts on them belong in session fixtures
of their own. ``hosts``: the same bed for one test; cables are mended afterwards, and nothing may be left on a node.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import jdist
from jdist.launch.base import Launcher
from support.hosts.namespaces import Bed, NamespaceLauncher
from support.hosts.rays import Rays
from support.hosts.slurmd import PROGRAMS as SLURMS
from support.hosts.slurmd import Slurm
from support.hosts.sshd import Sshd
from support.lacking import lacking
from support.waits import eventually


@pytest.fixture(scope="session")
def bed(run_traces: object) -> Iterator[Bed]:
    """Three nodes and this machine; skips where they cannot be made."""
    if os.geteuid() != 0:
        lacking("namespaces need root")
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            lacking(f"namespaces need the program {program}")
    bed = Bed(os.getpid() % 16384)
    try:
        try:
            bed.up()
        except OSError as e:
            lacking(f"this machine makes no namespaces: {e}")
        yield bed
    finally:
        bed.down()


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, type[Launcher]], None]:
    """Has a launcher found by a name, as one that another package brings."""

    def register(name: str, launcher: type[Launcher]) -> None:
        info = tmp_path / f"{name}_launcher-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-launcher\nVersion: 1\n")
        (info / "entry_points.txt").write_text(
            f"[jdist.launchers]\n{name} = {launcher.__module__}:{launcher.__name__}\n"
        )

    monkeypatch.syspath_prepend(tmp_path)
    return register


@pytest.fixture
def hosts(bed: Bed, offer: Callable[[str, type[Launcher]], None]) -> Iterator[Bed]:
    """The bed, whose cables the test may pull; ``namespaces`` is a launcher that starts agents on its nodes."""
    offer("namespaces", NamespaceLauncher)
    NamespaceLauncher.bed = bed
    yield bed
    bed.mend()
    assert eventually(lambda: not any(n.left() for n in bed.nodes)), [n.left() for n in bed.nodes]


@pytest.fixture
def across(hosts: Bed, fresh_cluster: Callable[..., jdist.Cluster]) -> Callable[..., jdist.Cluster]:
    """Starts two nodes of two ranks, each node in namespaces of its own; stopped before the bed is looked at."""

    def start(**options: Any) -> jdist.Cluster:
        return fresh_cluster(2, 2, launcher="namespaces", bind_host=hosts.head, **options)

    return start


@pytest.fixture(scope="session")
def sshd(bed: Bed) -> Iterator[Sshd]:
    """An sshd on each node, for the session."""
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh-keygen") is None:
        lacking("logins need sshd and ssh-keygen (openssh-server)")
    sshd = Sshd(bed)
    try:
        sshd.up()
        yield sshd
    finally:
        sshd.down()


@pytest.fixture
def logins(hosts: Bed, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """This process's user has the keys to the nodes; no login may be left."""
    monkeypatch.setenv("HOME", str(sshd.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield sshd
    assert eventually(lambda: not sshd.sessions()), sshd.sessions()


@pytest.fixture(scope="session")
def slurmd(bed: Bed) -> Iterator[Slurm]:
    """Slurm's daemons, for the session."""
    missing = [p for p in SLURMS if shutil.which(p) is None]
    if missing:
        lacking(f"Slurm needs the programs {', '.join(missing)} (slurm-wlm, munge)")
    slurm = Slurm(bed)
    try:
        slurm.up()
        yield slurm
    finally:
        slurm.down()


@pytest.fixture
def slurm(hosts: Bed, slurmd: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Slurm for one test, which runs outside of any job; no job may be left."""
    for name in [n for n in os.environ if n.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", str(slurmd.conf))
    yield slurmd
    left = [] if eventually(lambda: not slurmd.jobs(), 20) else slurmd.jobs()
    slurmd.release()
    assert not left, f"jobs were left: {left}"


@pytest.fixture(scope="module")
def rays(bed: Bed) -> Iterator[Rays]:
    """A Ray cluster of this machine and two of the nodes, for one file of tests: the next cut cable ends it."""
    if find_spec("ray") is None:
        lacking("a Ray cluster needs the package ray")
    rays = Rays(bed)
    try:
        rays.up(2)
        yield rays
    finally:
        rays.down()


HELPER = """
import sys
from beside import NAME
ANSWER = 1
def answer(): return ANSWER
def square(x): return x * x
def show(index, folder):
    import late
    open(f"{folder}/{index}", "w").write(late.NAME)
class Numbers:
    def __len__(self): return 2
    def __getitem__(self, i): return i + ANSWER
"""


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with modules in this machine's ``/tmp``, where this process works as a kernel started there does."""
    directory = Path(tempfile.mkdtemp(prefix="project-", dir="/tmp"))
    (directory / "helper.py").write_text(HELPER)
    (directory / "beside.py").write_text("NAME = 'beside'\n")
    (directory / "late.py").write_text("NAME = 'late'\n")
    (directory / "random.py").write_text("raise SystemError('random of the user')\n")
    (directory / "parts").mkdir()
    (directory / "parts" / "one.py").write_text("ONE = 1\n")
    (directory / "weights.pt").write_bytes(bytes(1 << 20))
    monkeypatch.chdir(directory)
    path = [entry for entry in sys.path if entry]
    first = next(n for n, entry in enumerate(path) if entry.endswith("site-packages"))
    monkeypatch.setattr(sys, "path", [*path[:first], "", *path[first:]])
    yield directory
    shutil.rmtree(directory)
