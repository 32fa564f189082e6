"""Wait for ended children, and explain in words how a process ended, running out of memory included.

The kernel counts the processes that it killed for memory in each memory cgroup (v2: ``memory.events``, v1:
``memory.oom_control``; both since Linux 4.13), and names them in its log, which root may read. The count is compared
with that of a moment before, so that an old kill, or one of another process, is not mistaken for this one.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import re
import select
import signal
import subprocess
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import psutil
from msgspec import Struct

from jdist.core.launchers import SlurmJob, parse_job

_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) .*?(\S+)$", re.MULTILINE)
# The memory cgroup's line in /proc/PID/cgroup, by the version of cgroups.
_CGROUP = {
    "1": re.compile(r"^\d+:(?:[^:\n]*,)?memory(?:,[^:\n]*)?:(.*)$", re.MULTILINE),
    "2": re.compile(r"^0::(.*)$", re.MULTILINE),
}


class MemoryCgroup(Struct, frozen=True):
    """A process's memory cgroup in one version of control groups, of which a machine may have both."""

    version: str  # "1" or "2".
    inside: str  # The cgroup's path in its hierarchy.
    mount: Path
    folder: Path


class MemoryCgroups:
    """The memory cgroups of this machine; ``root`` is where "proc" and "sys" are found."""

    def __init__(self, root: Path = Path("/")):
        self._root = root
        self._mounts = find_mounts(_read_control(root / "proc/self/mountinfo"))

    def of(self, pid: int) -> Iterator[MemoryCgroup]:
        """Those of a process, version 2 first. The folder need not exist: the memory may be counted in the other."""
        text = _read_control(self._root / f"proc/{pid}/cgroup")
        for version in ("2", "1"):
            inside = find_cgroup(text, version)
            if inside is None or version not in self._mounts:
                continue
            at, part = self._mounts[version]
            mount = self._root / at.lstrip("/")
            below = inside.removeprefix(part.rstrip("/")).lstrip("/")
            yield MemoryCgroup(version, inside, mount, mount / below)


def find_mounts(mountinfo: str) -> dict[str, tuple[str, str]]:
    """``{"1" or "2": (mount point, what part of the hierarchy it shows)}`` of the memory cgroups, from mountinfo."""
    return {
        "2" if kind == "cgroup2" else "1": (place, part)
        for part, place, kind, options in _MOUNT.findall(mountinfo)
        if kind == "cgroup2" or "memory" in options.split(",")
    }


def find_cgroup(text: str, version: str) -> str | None:
    """The memory cgroup in ``/proc/PID/cgroup`` ("0::/a/b", "4:memory:/a/b"), or None."""
    found = _CGROUP[version].search(text)
    return found[1] if found else None


def _read_control(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


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


_libc = ctypes.CDLL(None, use_errno=True)

_REMEMBERED = 256
_PROCESS_MRELEASE = 448  # Number of the system call, the same on all architectures.
_SLURM_TIMEOUT = 2.0  # Seconds for Slurm's answer; from SIGTERM to SIGKILL a job has 30 s by default.
_SLURM_RETRY = 0.1
_FATAL = {  # faulthandler's names of signals.
    "Aborted": signal.SIGABRT,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
}
_HINTS = {
    "process": "; no oom kill was counted",
    "unknown": "; the kernel's out-of-memory killer does that, or somebody's kill -9",
}


def is_dying(pidfd: int) -> bool:
    """Whether a process has ended, or has been killed and is being torn down (tens of ms for a large one).

    ``process_mrelease`` (Linux 5.15) frees the memory of a process that was killed, says ESRCH of one that has no more
    memory, and refuses any other.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if poll.poll(0):
        return True
    return _libc.syscall(_PROCESS_MRELEASE, pidfd, 0) == 0 or ctypes.get_errno() == errno.ESRCH


class ChildReaper:
    """Waits for all children of the agent, its workers and the orphans that it adopts as a subreaper."""

    def __init__(self) -> None:
        self._statuses: OrderedDict[int, int] = OrderedDict()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def reap(self) -> bool:
        """Wait for all that have ended; False when no child is left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._statuses[pid] = status
            while len(self._statuses) > _REMEMBERED:
                self._statuses.popitem(last=False)

    def status(self, pid: int) -> int | None:
        """The wait status of a child that has ended; None when another process waited for it."""
        self.reap()
        return self._statuses.pop(pid, None)

    def end_all(self, timeout: float) -> None:
        """Kill and reap children until none is left, for ``timeout`` seconds at most. For the agent's own end."""
        deadline = time.monotonic() + timeout
        while self.reap() and time.monotonic() < deadline:
            # The children of a killed worker become the agent's, so each round may find new ones.
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            time.sleep(0.002)


def explain_exit(status: int | None, verdict: OomVerdict | None = None) -> str:
    """A wait status in words (None: another process waited for it); ``verdict`` says who sent a SIGKILL."""
    if status is None:
        return "the process ended"
    if not os.WIFSIGNALED(status):
        return f"exited with code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else "?"
    if number != signal.SIGKILL:
        return f"killed by signal {number} ({name})"
    verdict = verdict or OomVerdict("unknown")
    if verdict.cause == "kernel":
        return f"killed by signal {number} ({name}), out of memory: {verdict.evidence}"
    return f"killed by signal {number} ({name}{_HINTS[verdict.cause]})"


def signal_of(text: str) -> int:
    """The signal that faulthandler reported before the process ended; 0 if it reported none."""
    return next((number for words, number in _FATAL.items() if f"Fatal Python error: {words}" in text), 0)


async def why_terminated(environ: Mapping[str, str]) -> str:
    """The reason for a SIGTERM to this agent; in a Slurm job, with the job's state (preemption, time limit, cancel)."""
    reason = "its agent was ended by SIGTERM"
    number = environ.get("SLURM_JOB_ID", "")
    job = await _query_slurm(number) if number else None
    if job is None or job.phase == "running":  # the signal came from elsewhere
        return reason
    advice = job.advice()
    return f"{reason}: {job.describe()}{'; ' if advice else ''}{advice}"


async def _query_slurm(number: str) -> SlurmJob | None:
    """The job's state. Slurm signals all processes of a job, repeatedly, and so may end scontrol: then retry."""
    command = ["scontrol", "show", "job", number, "-o"]
    deadline = time.monotonic() + _SLURM_TIMEOUT
    while (left := deadline - time.monotonic()) > 0:
        try:
            answer = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=left)
        except (OSError, subprocess.TimeoutExpired):
            return None
        job = parse_job(answer.stdout)
        if job is not None or answer.stderr:
            return job
        await asyncio.sleep(_SLURM_RETRY)
    return None
