"""Processes that a rank's cells have started: programs, and forked copies of the rank.

Stop interrupts the programs of a run as Ctrl-C in a terminal would. They are found by the rank's process group, which a
process started on purpose as a daemon (``start_new_session``) has left, and by their age: what an earlier cell has left
running on purpose goes on.

Forked children, such as those of ``multiprocessing`` and data loaders, are copies that are not ranks. A child has
everything that jdist installed in the rank, but none of its threads. Whatever could answer for the rank, or change its
world, is disabled there, so that the child behaves like one forked from any script: it writes to the rank's output,
Ctrl-C ends it, and it may form a world of its own. `dist.get_rank()` still works, since samplers in data loaders call
it.
"""

import builtins
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from jdist.wire.processes import set_name
from jdist.worker.cells import signals
from jdist.worker.compat import ipykernel as ipykernel_compat

_TICK = 1 / os.sysconf("SC_CLK_TCK")  # Seconds; the kernel rounds a process's start down to this.
_AGAIN = 0.05
_AFTER_RANK = 0.05  # Seconds: the rank is interrupted first, else its cell goes on once the child ends.


class Children:
    """The children of this process's present run; callable from any thread."""

    def __init__(self) -> None:
        self._began = (0.0, 0)  # When the run began, and the process id that was assigned last then.

    def begin(self) -> None:
        """A run begins."""
        newest = int(Path("/proc/loadavg").read_text().split()[-1])
        self._began = time.clock_gettime(time.CLOCK_BOOTTIME), newest

    def find(self) -> dict[int, float]:
        """Those of the run, with the moments of their starts, but for those that ignore SIGINT."""
        group, found = os.getpgrp(), {}
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if pid == os.getpid() or os.getpgid(pid) != group:
                    continue
                began = _started(pid)
                if self._is_of_run(pid, began) and not _ignores_interrupts(pid):
                    found[pid] = began
        return found

    def _is_of_run(self, pid: int, began: float) -> bool:
        """By its age, and by its number where both have begun within one tick: numbers go up."""
        since, newest = self._began
        if abs(began - since) > _TICK:
            return began > since
        return pid > newest

    @staticmethod
    def end(found: dict[int, float], grace: float, is_left_alone: Callable[[], bool]) -> None:
        """Send them SIGINT, and kill those which hang where it has no effect, ``grace`` seconds later.

        They are not killed while ``is_left_alone``: the cell handles its interrupt, and may wait for what they save.
        """
        time.sleep(_AFTER_RANK)
        _signal(found, signal.SIGINT)
        deadline = time.monotonic() + grace
        while found and time.monotonic() < deadline:
            time.sleep(_AGAIN)
            if is_left_alone():
                deadline = time.monotonic() + grace
            found = {pid: began for pid, began in found.items() if _is_there(pid, began)}
        _signal(found, signal.SIGKILL)


def _signal(found: dict[int, float], number: signal.Signals) -> None:
    for pid, began in found.items():
        with contextlib.suppress(OSError):
            if _is_there(pid, began):
                os.kill(pid, number)


def _is_there(pid: int, began: float) -> bool:
    with contextlib.suppress(OSError):
        return _stat(pid)[0] not in ("Z", "X") and _started(pid) == began
    return False


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _started(pid: int) -> float:
    """Seconds of the clock CLOCK_BOOTTIME."""
    return int(_stat(pid)[19]) * _TICK


def _ignores_interrupts(pid: int) -> bool:
    """Whether the process ignores SIGINT, as multiprocessing's own helpers do."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1)
    return False


_input = builtins.input  # Python's own: ipykernel puts another in its place before each cell.


def disable_in_children(kernel: Any, parts: Sequence[Callable[[], None]]) -> None:
    """From now on, call ``parts`` in each forked child before anything else; once, on the main thread."""

    def after_fork() -> None:
        set_name("jdist-child")
        signal.set_wakeup_fd(-1)  # else the rank's event loop would take the child's signals for the rank's
        if getattr(signal.getsignal(signal.SIGINT), "__module__", "") == signals.__name__:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        builtins.input = _input
        ipykernel_compat.be_silent(kernel)
        for part in parts:
            part()

    os.register_at_fork(after_in_child=after_fork)


def end_with_cell(result: Any) -> NoReturn:
    """End a child that has come to the end of the cell, as a script's child ends with the script.

    ``result`` is IPython's ExecutionResult, or None when there is none.
    """
    error = result and (result.error_before_exec or result.error_in_exec)
    code = 1 if error else 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's own stream
            stream.flush()
    os._exit(code & 0xFF)
