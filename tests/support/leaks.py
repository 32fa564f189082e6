"""Leak checks: what a test run has on the machine, and what of it a test has left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path
from typing import Any

import psutil

from jdist.client import find
from support.forked_nodes import STAND_IN

SHARED_MEMORY = Path("/dev/shm")
_MARK = 64  # Bytes of the file by which a client shows that it shares a rank's memory; it is made when first needed.


class Traces:
    """What this test run has on the machine."""

    def __init__(self, runtime: Path, importer: int = 0):
        self.runtime = runtime
        self._importer = importer
        self.exempt: set[int] = set()
        """Processes whose descendants belong to a cluster of a module that lives on."""
        self.shared: set[int] = set()
        """Those of the cluster that all modules share, which is started and ended in the middle of any of them."""
        self._mark = f"JUPYTER_RUNTIME_DIR={runtime}".encode()
        self._clusters: set[str] = set()

    def note_clusters(self) -> None:
        """Remember the clusters that run now, so that their shared memory is known as this run's."""
        self._clusters |= {c.cluster for c in find.connections().values()}

    def processes(self) -> dict[int, str]:
        """``{pid: command line}`` of everything that inherited this run's folder.

        Left out are this process, zombies, and what `forked_nodes` adds: the importer, and the stand-ins of agents.
        """
        found: dict[int, str] = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if pid != os.getpid() and self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if pid != self._importer and STAND_IN not in line:
                        found[pid] = line[:200]
        return found

    def zombies(self) -> dict[int, str]:
        """Dead children of this process that nobody waited for, and their names."""
        found: dict[int, str] = {}
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):  # another thread has waited for it by now
                if child.status() == psutil.STATUS_ZOMBIE:
                    found[child.pid] = child.name()
        return found

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
            "files": {f: _command(_owner(f)) for f in self.files() - before.files if not self._is_exempt(f, exempt)},
            "threads": {t for t in threading.enumerate() if not t.daemon and t not in before.threads},
            "fds": sorted(fds.values()) if len(fds) > before.fds else [],
        }
        return {kind: what for kind, what in found.items() if what}

    def _is_exempt(self, path: str, exempt: set[int]) -> bool:
        """Whether a file belongs to a cluster that lives on: to a process of it, or as this process's mark there."""
        if _owner(path) != os.getpid():
            return _owner(path) in exempt
        with contextlib.suppress(FileNotFoundError):
            living = {c.cluster for c in find.connections().values() if c.pid in self.exempt | self.shared}
            return Path(path).stat().st_size <= _MARK and Path(path).name.split("-")[1] in living
        return True

    def _exempt_tree(self) -> set[int]:
        tree: set[int] = set()
        for pid in self.exempt | self.shared:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree |= {pid, *(c.pid for c in psutil.Process(pid).children(recursive=True))}
        return tree

    def snapshot(self) -> Snapshot:
        gc.collect()
        gc.freeze()  # collections look at what the test makes: all that there is, torch included, takes a second each
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


def _command(pid: int) -> str:
    """The command line of a file's owner, which tells how the file came to be."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200] if pid else ""
    return f"process {pid}, which has ended"


def _target(fd: str) -> str:
    with contextlib.suppress(OSError):
        return f"{fd} -> {os.readlink(f'/proc/self/fd/{fd}')}"
    return fd
