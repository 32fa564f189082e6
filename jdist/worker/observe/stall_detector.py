"""The stall detector: while a cell runs, notices within a quarter of a second or two that its rank has got stuck.

It ticks on jdist's own thread, from the moment a cell is sent to the main thread until none is running or due; nothing
ticks between cells.
"""

import asyncio
from collections.abc import Callable

from jdist.worker.observe.main_thread import Key
from jdist.worker.observe.observer import Observer, RunSpans

TICK = 0.25


class StallDetector:
    """Calls ``on_stall(run)`` once for each call in which the main thread has been blocked for a whole tick.

    On one asyncio loop.
    """

    def __init__(self, observer: Observer, spans: RunSpans, on_stall: Callable[[int], None]):
        self._observer = observer
        self._spans = spans
        self._on_stall = on_stall
        self._newest = 0
        self._next: asyncio.TimerHandle | None = None
        self._last: Key | None = None
        self._reported: Key | None = None

    def expect(self, run: int) -> None:
        """A cell was sent to the main thread."""
        self._newest = run
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._next = None
        if not self._spans.is_due(self._newest):
            self._last = self._reported = None
            return
        self._next = asyncio.get_running_loop().call_later(TICK, self._tick)
        at = self._observer.glance()
        key = at.key if at is not None else None
        # Outside a call of its own a glance reports a collective or transfer only for the place of the one before.
        is_blocked = at is not None and (at.kind in ("collective", "transfer", "store"))
        if at is not None and (at.kind == "store" or at.is_open):
            is_blocked = key == self._last
        if is_blocked and key != self._reported:
            self._reported = key
            self._on_stall(self._spans.current)
        self._last = key
