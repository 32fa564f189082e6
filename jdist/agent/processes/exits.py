"""Exits: waiting for ended children, and explaining in words how a process ended, or why the agent itself is to end."""

import asyncio
import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import time
from collections import OrderedDict
from collections.abc import Mapping

import psutil

from jdist.agent.processes.oom import OomVerdict
from jdist.core.launchers.slurm import SlurmJob, parse_job

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
