"""Unresponsive ranks: for a worker that does not answer what it is doing, its agent answers from outside the process.

A process that is stopped, or in which something holds the GIL, cannot answer; what the operating system knows of it is
reported all the same.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import psutil

from jdist.core.messages.observation import Observation
from jdist.core.messages.protocol import RankReply
from jdist.core.observation import Activity

PATIENCE = 0.5  # Seconds that a worker has for an answer.
_REMEMBERED = 1000  # Number of answers given in a worker's place that are remembered, as its own may still come.
_BUSY = 0.5  # Share of a core above which a process counts as computing.

_Key = tuple[str, int]


class _PendingReply(NamedTuple):
    timer: asyncio.TimerHandle
    cpu: float
    at: float


class UnresponsiveRanks:
    """Queries that workers have not answered yet. On the agent's asyncio loop."""

    def __init__(self, send: Callable[[RankReply], object]):
        self._send = send
        self._waiting: dict[_Key, _PendingReply] = {}
        self._answered: OrderedDict[_Key, None] = OrderedDict()

    def expect(self, request: str, worker: int, pid: int) -> None:
        """A worker was sent an `Observe`."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(PATIENCE, self._answer, (request, worker), pid)
        self._waiting[request, worker] = _PendingReply(timer, _cpu(pid), loop.time())

    def is_late(self, answer: RankReply) -> bool:
        """Record an answer; whether it is to be dropped because the agent has answered already."""
        key = (answer.request, answer.rank)
        pending = self._waiting.pop(key, None)
        if pending is not None:
            pending.timer.cancel()
        return self._answered.pop(key, ()) is None

    def _answer(self, key: _Key, pid: int) -> None:
        pending = self._waiting.pop(key)
        self._answered[key] = None
        while len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
        share = max(0.0, _cpu(pid) - pending.cpu) / (asyncio.get_running_loop().time() - pending.at)
        state, rss = _state(pid, share)
        request, worker = key
        self._send(RankReply(request, worker, Observation("", Activity("silent", cpu=share, state=state), rss)))


def _cpu(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _state(pid: int, share: float) -> tuple[str, int]:
    """The process's state in words, and its resident bytes."""
    try:
        process = psutil.Process(pid)
        state, rss = process.status(), int(process.memory_info().rss)
    except psutil.Error:
        return "its process is gone", 0
    match state:
        case psutil.STATUS_STOPPED:
            return f"stopped by a signal (SIGSTOP); kill -CONT {pid} lets it go on", rss
        case psutil.STATUS_TRACING_STOP:
            return "stopped by a debugger", rss
        case psutil.STATUS_DISK_SLEEP:
            return "in uninterruptible I/O, as of a disk or a network file system that does not answer", rss
        case psutil.STATUS_ZOMBIE | psutil.STATUS_DEAD:
            return "its process has ended", rss
    if share >= _BUSY:
        return f"does not answer: something holds the GIL; {share:.0%} of a core".replace("%", " %"), rss
    return "does not answer: something holds the GIL and waits, or the machine is overloaded", rss
