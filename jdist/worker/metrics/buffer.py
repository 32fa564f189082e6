"""What a rank has logged and not sent yet. The cell's thread only appends to a queue; another makes columns of it."""

import math
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from jdist.core.errors import UsageError
from jdist.core.messages.runs import MetricPoints
from jdist.worker.metrics.numbers import MOST_STEP, DeviceNumber, number, whole_step

MOST_POINTS = 10_000  # Of one name in one run that are sent; beyond it, every second one, every fourth, …
MOST_NAMES = 200
_LONGEST_NAME = 200
_MOST_QUEUED = 50_000  # Calls that may wait; the next one makes columns of them itself.

_Call = tuple[float, int | None, dict[str, Any]]  # When, the step, and the numbers by name.


class MetricColumns:
    """The points of one name in one run: those that have not been sent, and how many there were in all."""

    def __init__(self) -> None:
        self.count = 0
        self._stride = 1
        self._first = 0  # The index of the first point in the columns.
        self._steps, self._values, self._times = array("q"), array("d"), array("d")
        self._newest = (0, 0.0, 0.0)
        self._nonfinite = self._first_nonfinite = 0
        self._nonfinite_since: int | None = None
        self._is_sent = True

    def add(self, step: int, value: float, when: float) -> None:
        """Add a point."""
        if self.count % self._stride == 0:
            if self.count // self._stride >= MOST_POINTS:
                self._thin()
            if self.count % self._stride == 0:
                if not self._steps:
                    self._first = self.count
                self._steps.append(step)
                self._values.append(value)
                self._times.append(when)
        self.count += 1
        self._newest = (step, value, when)
        self._is_sent = False
        if math.isfinite(value):
            self._nonfinite_since = None
            return
        if not self._nonfinite:
            self._first_nonfinite = step
        if self._nonfinite_since is None:
            self._nonfinite_since = step
        self._nonfinite += 1

    def _thin(self) -> None:
        """From here on, keep every second of the points that would have been kept."""
        skip = self._first // self._stride % 2
        self._first += skip * self._stride
        self._stride *= 2
        self._steps, self._values, self._times = self._steps[skip::2], self._values[skip::2], self._times[skip::2]

    def take(self, worker: int, name: str) -> MetricPoints | None:
        """The points since the last call; None if there are none."""
        if self._is_sent:
            return None
        points = MetricPoints(
            worker,
            name,
            self._steps.tobytes(),
            self._values.tobytes(),
            self._times.tobytes(),
            self._first,
            self._stride,
            self.count,
            self._newest,
            self._nonfinite,
            self._first_nonfinite,
            self._nonfinite_since,
        )
        self._steps, self._values, self._times = array("q"), array("d"), array("d")
        self._is_sent = True
        return points


class _RunColumns:
    """The columns of one run by name, and how often each set of names was logged without a step."""

    def __init__(self) -> None:
        self.columns: dict[str, MetricColumns] = {}
        self.calls: dict[tuple[str, ...], int] = {}


class MetricBuffer:
    """The sink of ``jdist.log`` on a rank. :meth:`add` is called by cells, on any thread, the rest as it says."""

    def __init__(self, worker: int, wake: Callable[[], None] = lambda: None) -> None:
        self._worker = worker
        self._wake = wake  # Called by `add` when there is something to send again.
        self._queue: deque[_Call] = deque()
        self._is_awake = False
        self._names: set[str] = set()
        # Taken itself: an interrupt cannot come between taking it and what gives it back.
        self._lock = threading.RLock()
        self._runs: dict[int, _RunColumns] = {}
        self._run = 0

    def add(self, step: Any, numbers: dict[str, Any]) -> None:
        """Queue numbers. Raises UsageError for what is no number."""
        for name, value in numbers.items():
            if type(value) is not float:
                numbers[name] = number(name, value)
            if name not in self._names:
                self._admit(name)
        if step is not None and not (type(step) is int and -MOST_STEP < step < MOST_STEP):
            step = whole_step(step)
        self._queue.append((time.time(), step, numbers))
        if not self._is_awake:
            self._is_awake = True
            self._wake()
        elif len(self._queue) > _MOST_QUEUED:
            self._collect()

    def _admit(self, name: str) -> None:
        if len(self._names) >= MOST_NAMES:
            raise UsageError(f"jdist.log: {name} is one name too many in this run; there may be {MOST_NAMES}")
        if len(name) > _LONGEST_NAME:
            raise UsageError(f"jdist.log: a name has {len(name):,} characters; at most {_LONGEST_NAME}")
        self._names.add(name)

    def begin(self, run: int, *, is_inner: bool = False) -> None:
        """What is logged from here on belongs to ``run``; the caller has taken what was logged before."""
        with self._lock:
            if not is_inner and run not in self._runs:
                self._runs.clear()
                self._names.clear()
            self._run = run

    def take(self) -> tuple[int, list[MetricPoints]]:
        """The run, and what was logged in it since the last call, in columns by name; on any thread."""
        self._is_awake = False  # before the queue is read: what is queued afterwards wakes again
        with self._lock:
            self._collect()
            columns = self._runs[self._run].columns.items()
            found = (held.take(self._worker, name) for name, held in columns)
            return self._run, [points for points in found if points is not None]

    @property
    def is_waiting(self) -> bool:
        """Whether numbers are still on their way from a GPU."""
        return bool(self._queue)

    def _collect(self) -> None:
        """Move what is queued into columns, up to the first number that is still on its way from a GPU."""
        with self._lock:
            run = self._runs.setdefault(self._run, _RunColumns())
            while self._queue:
                when, step, numbers = self._queue[0]
                for name, value in list(numbers.items()):
                    if type(value) is DeviceNumber:
                        self._read(value, name, numbers)
                if any(type(value) is DeviceNumber for value in numbers.values()):
                    return
                self._queue.popleft()
                if step is None:
                    names = tuple(numbers)
                    step = run.calls.get(names, 0)
                    run.calls[names] = step + 1
                for name, value in numbers.items():
                    if name not in run.columns:
                        run.columns[name] = MetricColumns()
                    run.columns[name].add(step, value, when)

    def _read(self, value: DeviceNumber, name: str, numbers: dict[str, Any]) -> None:
        """Put a number that has come in its place, and drop one that never will: its device has failed."""
        try:
            read = value.read()
        except RuntimeError:  # the cell itself reports it, at its next call
            del numbers[name]
        else:
            numbers[name] = value if read is None else read
