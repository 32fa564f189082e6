"""Watch: while a cell runs, notice within a quarter of a second or two that its rank has got stuck.

It ticks on jdist's own thread, from the moment a cell is sent to the main thread until none is on or due; nothing ticks
between cells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jdist.worker.observe.main_thread import Place
from jdist.worker.observe.observer import Observer
from jdist.worker.observe.spans import Runs

TICK = 0.25


class Watch:
    """Calls ``stalled(run)`` once for each call in which the main thread has been blocked for a whole tick.

    On one asyncio loop; ``is_due(run)`` tells whether the run's cell is on or has not begun.
    """

    def __init__(self, observer: Observer, runs: Runs, is_due: Callable[[int], bool], stalled: Callable[[int], None]):
        self._observer = observer
        self._runs = runs
        self._is_due = is_due
        self._stalled = stalled
        self._newest = 0
        self._next: asyncio.TimerHandle | None = None
        self._last: Place | None = None
        self._said: Place | None = None

    def expect(self, run: int) -> None:
        """A cell was sent to the main thread."""
        self._newest = run
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._next = None
        if not self._is_due(self._newest):
            self._last = self._said = None
            return
        self._next = asyncio.get_running_loop().call_later(TICK, self._tick)
        place = self._observer.glance()
        if place is not None and _is_blocked(place, self._last) and not _is_same(place, self._said):
            self._said = place
            self._stalled(self._runs.current)
        self._last = place


def _is_blocked(now: Place, before: Place | None) -> bool:
    if now.kind == "store" or now.is_open:
        return _is_same(now, before)
    return now.kind in ("collective", "transfer")  # only said of a place that was the same at the last glance


def _is_same(now: Place, before: Place | None) -> bool:
    return before is not None and before.key == now.key
