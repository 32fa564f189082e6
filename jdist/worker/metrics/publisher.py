"""The publisher of metrics: sends what a rank has logged, a few times a second and before a cell's end is reported."""

import threading
import time
from collections.abc import Callable

from jdist.core.messages.runs import MetricsLogged
from jdist.worker.metrics import log
from jdist.worker.metrics.buffer import MetricBuffer

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
        log.connect(self.buffer)

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
