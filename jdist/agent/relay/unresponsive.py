"""Silence: a worker that does not say what it is doing is spoken for by its agent, from outside its process.

A process that is stopped, or in which something holds Python's lock, cannot answer; what the operating system tells of
it can be said all the same.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import psutil

from jdist.core.messages.observation import Observation
from jdist.core.messages.protocol import RankReply
from jdist.core.observation import Activity

PATIENCE = 0.5
"""Seconds that a worker has for an answer."""
_REMEMBERED = 1000
"""Answers given in a worker's place, of which its own may still come."""
_BUSY = 0.5
"""Share of a core above which a process computes."""

_Key = tuple[str, int]


class _Before(NamedTuple):
    timer: asyncio.TimerHandle
    cpu: float
    at: float


class Silence:
    """Questions that workers have not answered yet. On the agent's asyncio loop."""

    def __init__(self, send: Callable[[RankReply], object]):
        self._send = send
        self._waiting: dict[_Key, _Before] = {}
        self._spoken_for: OrderedDict[_Key, None] = OrderedDict()

    def expect(self, request: str, rank: int, pid: int) -> None:
        """A worker was asked what it is doing."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(PATIENCE, self._speak, (request, rank), pid)
        self._waiting[request, rank] = _Before(timer, _cpu(pid), loop.time())

    def forget(self) -> None:
        """Ranks have other numbers: whoever was asked under an old one answers for itself."""
        for before in self._waiting.values():
            before.timer.cancel()
        self._waiting.clear()
        self._spoken_for.clear()

    def is_late(self, answer: RankReply) -> bool:
        """Note an answer that came; whether it is to be dropped, since the agent has given it."""
        key = (answer.request, answer.rank)
        before = self._waiting.pop(key, None)
        if before is not None:
            before.timer.cancel()
        return self._spoken_for.pop(key, ()) is None

    def _speak(self, key: _Key, pid: int) -> None:
        before = self._waiting.pop(key)
        self._spoken_for[key] = None
        while len(self._spoken_for) > _REMEMBERED:
            self._spoken_for.popitem(last=False)
        share = max(0.0, _cpu(pid) - before.cpu) / (asyncio.get_running_loop().time() - before.at)
        state, rss = _state(pid, share)
        request, rank = key
        self._send(RankReply(request, rank, Observation("", Activity("silent", cpu=share, state=state), rss)))


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
