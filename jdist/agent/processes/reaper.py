"""The reaper: waits for every child of the agent, its workers and the orphans that it adopts as a subreaper."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import OrderedDict

import psutil

_REMEMBERED = 256


class Reaper:
    """Collects ended children as the kernel announces them; no zombie stays, whoever's child it was."""

    def __init__(self) -> None:
        self._statuses: OrderedDict[int, int] = OrderedDict()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.collect)

    def collect(self) -> bool:
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
        """The wait status of a child that has ended; None when somebody else waited for it."""
        self.collect()
        return self._statuses.pop(pid, None)

    def end_all(self, timeout: float) -> bool:
        """Kill and await until no child is left; False after ``timeout`` seconds. For the agent's own end.

        The children of a killed worker become the agent's, so each round may find new ones.
        """
        deadline = time.monotonic() + timeout
        while self.collect():
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True
