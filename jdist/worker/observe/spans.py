"""When each run's cell began and ended on this rank. Times are the wall clock's."""

import time
from collections import deque

from msgspec import Struct

_KEPT = 256


class RunSpan(Struct):
    """One run's cell."""

    run: int
    began: float
    ended: float | None = None


class RunSpans:
    """Written by the main thread, read by any."""

    def __init__(self) -> None:
        self._spans: deque[RunSpan] = deque(maxlen=_KEPT)

    def begin(self, run: int) -> None:
        self._spans.append(RunSpan(run, time.time()))

    def end(self, run: int) -> None:
        if span := self.find(run):
            span.ended = time.time()

    def find(self, run: int) -> RunSpan | None:
        """The span of the run's cell, if it is remembered; for run 0, the last cell's."""
        return next((s for s in reversed(list(self._spans)) if run in (0, s.run)), None)

    @property
    def current(self) -> int:
        """The run whose cell is on, 0 between cells."""
        last = self.find(0)
        return last.run if last is not None and last.ended is None else 0

    def is_due(self, run: int) -> bool:
        """Whether the run's cell is on or has not begun, and no later one has."""
        last = self.find(0)
        return last is None or last.run < run or (last.run == run and last.ended is None)
