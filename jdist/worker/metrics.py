"""``jdist.log``: the numbers of a training, from a cell to the chart below it.

``item()`` would synchronise the GPU, so a tensor there is copied to pinned memory and read when the copy has finished.
The cell's thread only appends to a queue; another thread makes columns of the entries. The publisher sends them a few
times a second and before a cell's end is reported.
"""

import math
import operator
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from jdist.core.errors import UsageError
from jdist.core.messages.runs import MetricPoints, MetricsLogged

MOST_STEP = 2**62


class DeviceNumber:
    """A number that is on its way from a GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = tensor.detach().to("cpu", non_blocking=True)  # into pinned memory, in the order of the stream
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> float | None:
        """The number; None if it has not been copied yet. Raises RuntimeError if the device has failed."""
        return float(self._host.item()) if self._copied.query() else None


def number(name: str, value: Any) -> float | DeviceNumber:
    """What was logged under ``name``. Raises UsageError if it is not one real number."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(name, value)
    is_array = isinstance(value, np.ndarray)
    if is_array and value.size != 1:
        raise _refused(name, f"an array of shape {list(value.shape)}", f"log one number, such as {name}={name}.mean()")
    if isinstance(value, str | bytes | complex | np.complexfloating) or not hasattr(value, "__float__"):
        raise _refused(name, f"{value!r:.60} ({type(value).__name__})", "log a number or a tensor of one element")
    try:
        return float(value.item() if is_array else value)
    except (TypeError, ValueError, OverflowError) as e:
        raise _refused(name, f"{value!r:.60} ({type(value).__name__})", str(e)) from None


def _of_tensor(name: str, value: torch.Tensor) -> float | DeviceNumber:
    if value.numel() != 1:
        what = f"a tensor of shape {list(value.shape)}"
        raise _refused(name, what, f"log one number, such as {name}={name}.mean()")
    if value.is_complex():
        raise _refused(name, f"a tensor of {value.dtype}", f"log a real number, such as {name}={name}.abs()")
    placements = getattr(value, "placements", ())
    if any(not placement.is_replicate() for placement in placements):
        raise _refused(name, f"a DTensor placed {tuple(placements)}", f"log {name}={name}.full_tensor()")
    if value.is_meta:
        raise _refused(name, "a tensor on the meta device", "it has no value")
    if placements:
        value = value.to_local()  # type: ignore[attr-defined]
    return DeviceNumber(value) if value.is_cuda else float(value.item())


def whole_step(step: Any) -> int:
    """The step. Raises UsageError if it is not a whole number of 63 bits."""
    try:
        found = operator.index(step)
    except TypeError:
        what = f"{step!r:.60} ({type(step).__name__})"
        raise UsageError(
            f"jdist.log: step is {what}; it must be an integer. Numbers are logged by name: jdist.log(loss=…, step=i)"
        ) from None
    if not -MOST_STEP < found < MOST_STEP:
        raise UsageError(f"jdist.log: step {found} is too large")
    return found


def _refused(name: str, what: str, instead: str) -> UsageError:
    return UsageError(f"jdist.log: {name} is {what}, not one number; {instead}")


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


_INTERVAL = 0.25  # Seconds between two messages of a rank.
_MOST_WAIT = 2.0  # Seconds that a cell's end waits for numbers on their way from a GPU, which may be stuck.
_POLL = 0.001


class MetricPublisher:
    """Publishes one rank's metrics with ``publish``, on a thread that starts with the first call of ``jdist.log``."""

    def __init__(self, worker: int, publish: Callable[[MetricsLogged], None]) -> None:
        self.buffer = MetricBuffer(worker, self._wake)
        self._publish = publish
        self._lock = threading.RLock()  # Held from taking points to sending them, so that no message overtakes another.
        self._is_due = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Have ``jdist.log`` use this."""
        connect(self.buffer)

    def begin(self, run: int, *, is_inner: bool = False) -> None:
        """A cell begins: what is logged from here on is the run's."""
        with self._lock:
            self.flush()
            self.buffer.begin(run, is_inner=is_inner)

    def end(self) -> None:
        """Send all that was logged; what is still on its way from a GPU after a while is sent when it has come."""
        self.flush()
        until = time.monotonic() + _MOST_WAIT
        while self.buffer.is_waiting and time.monotonic() < until:
            time.sleep(_POLL)
            self.flush()

    def flush(self) -> None:
        """Send what was logged since the last time; from any thread."""
        with self._lock:
            run, points = self.buffer.take()
            if points:
                self._publish(MetricsLogged(run, tuple(points)))
        if self.buffer.is_waiting:
            self._is_due.set()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="jdist-metrics", daemon=True)
            self._thread.start()
        self._is_due.set()

    def _run(self) -> None:
        while self._is_due.wait():
            time.sleep(_INTERVAL)
            self._is_due.clear()
            self.flush()


class MetricSink(Protocol):
    """Takes what is logged."""

    def add(self, step: Any, numbers: dict[str, Any]) -> None: ...


_sinks: list[MetricSink] = []  # That of this process, if it is a rank.


def log(step: int | None = None, **numbers: Any) -> None:
    """Log numbers under their names, such as ``jdist.log(loss=loss, lr=lr, step=i)``; the cell's output charts them.

    A number is a Python or NumPy number, or a tensor of one element. Without ``step``, the calls with the same names
    are counted from 0 in each cell. A call costs about a microsecond and never waits for a GPU, and does nothing
    outside of a cluster. Raises UsageError, naming the argument, for anything that is not one real number.
    """
    for sink in _sinks:
        sink.add(step, numbers)


def connect(sink: MetricSink) -> None:
    """Have :func:`log` call ``sink``, and nothing else."""
    _sinks[:] = [sink]


def disconnect() -> None:
    """In a forked child, which is no rank: log nothing."""
    _sinks.clear()
