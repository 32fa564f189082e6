"""Out of memory: did the kernel kill this process because memory ran out?

The kernel counts such kills for each memory cgroup (v2: ``memory.events``, v1: ``memory.oom_control``; both since
Linux 4.13) and names the process in its log, which root may read. The count is compared with the one of a moment ago,
so that a kill of long ago, or of another process, is not taken for this one.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Literal

from msgspec import Struct

from jdist.wire.cgroups import MemoryCgroups

Cause = Literal["kernel", "process", "unknown"]  # The sender of a SIGKILL; the kernel, if memory ran out.

_KILLED = re.compile(r"Killed process (\d+) ")
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_COUNTERS = {"1": "memory.oom_control", "2": "memory.events"}  # The file with the count, by version of cgroups.
_RECORD = 8192  # Bytes of the longest record of /dev/kmsg.


class OomVerdict(Struct, frozen=True):
    """Whether a process was killed because memory ran out, and how that is known."""

    cause: Cause
    evidence: str = ""


class OomMonitor:
    """Reads the kernel's counters and log for some processes. Call `tick` about once a second."""

    def __init__(self, root: Path = Path("/")):
        self._root = root  # Where "proc", "sys" and "dev" are found.
        self._cgroups = MemoryCgroups(root)
        self._counters: dict[int, Path | None] = {}  # The file with the count, by process; None where there is none.
        self._older: dict[Path, int] = {}
        self._newer: dict[Path, int] = {}  # Counts of the last tick and of the one before: a death is noticed late.
        self._log = -1
        with contextlib.suppress(OSError):  # for root only, on most systems
            self._log = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._log, 0, os.SEEK_END)
        self._older_killed: set[int] = set()
        self._newer_killed: set[int] = set()

    def watch(self, pid: int) -> None:
        """Begin to watch a process, on which a verdict may be needed."""
        counter = self._counters[pid] = self._counter_of(pid)
        if counter is not None and counter not in self._older and (count := _count(counter)) is not None:
            self._older[counter] = self._newer[counter] = count

    def tick(self) -> None:
        """Record the kernel's counts, and the processes' cgroups, since processes may be moved."""
        for pid in self._counters:
            self._counters[pid] = self._counter_of(pid, is_moved=True) or self._counters[pid]
        counts = {c: n for c in set(self._counters.values()) if c is not None and (n := _count(c)) is not None}
        self._older, self._newer = counts | self._newer, counts
        self._older_killed, self._newer_killed = self._newer_killed, self._read_log()

    def verdict(self, pid: int) -> OomVerdict:
        """The verdict on a process that a SIGKILL has just ended; it is watched no longer."""
        counter = self._counters.pop(pid, None)
        self._newer_killed |= self._read_log()
        if pid in self._newer_killed | self._older_killed:
            return OomVerdict("kernel", "the kernel's log names it")
        now = _count(counter) if counter is not None else None
        if counter is None or now is None or counter not in self._older:
            return OomVerdict("unknown")
        kills = now - self._older[counter]
        if kills > 0:
            return OomVerdict("kernel", f"the kernel's cgroup counted {kills} oom kill{'s' if kills > 1 else ''}")
        return OomVerdict("process")

    def close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def _counter_of(self, pid: int, is_moved: bool = False) -> Path | None:
        for cgroup in self._cgroups.of(pid):
            if is_moved and cgroup.version == "1" and cgroup.inside == "/":
                return None  # where cgroup v1 shows a process that has ended
            counter = cgroup.folder / _COUNTERS[cgroup.version]
            if _count(counter) is not None:
                return counter
        return None

    def _read_log(self) -> set[int]:
        """Processes killed because memory ran out, by the log since it was last read."""
        killed: set[int] = set()
        while self._log >= 0:
            try:
                record = os.read(self._log, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the kernel has overwritten records that were not read in time
            except OSError:
                self.close()
                break
            if not record:
                break
            killed |= {int(pid) for pid in _KILLED.findall(record.decode(errors="replace"))}
        return killed


def _count(path: Path) -> int | None:
    """The number after "oom_kill" in a counter's file; None if it cannot be read or has none."""
    found = _KILLS.search(_read(path))
    return int(found[1]) if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
