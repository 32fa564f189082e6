"""The cell profiler: profiles a rank's cells, and keeps the last one's profile and calls for the client."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from jdist.core.messages.observation import RankTrace
from jdist.core.messages.runs import ExecuteCell
from jdist.core.observation import Call
from jdist.worker.observe.call_log import CallLog
from jdist.worker.profile.recorder import Recorder

_MOST_CALLS = 40_000  # Number of calls kept for a run.
_NEWEST = 256  # Number of recent calls that are checked for one in flight.
_EVERY = 2.0  # Seconds between two readings of the calls; torch and the log keep only the newest.

ReadTrace = Callable[[int], RankTrace | None]


class CellProfiler:
    """Profiles cells of one rank on request."""

    def __init__(self, log: CallLog, read_trace: ReadTrace) -> None:
        self._log = log
        self._read_trace = read_trace
        self._recorder: Recorder | None = None
        self._calls: CallKeeper | None = None

    @contextmanager
    def around(self, cell: ExecuteCell) -> Iterator[None]:
        """Profile a cell that runs in this context on the main thread, if requested."""
        if cell.spec.profile is None:
            yield
            return
        calls = self._calls = CallKeeper(cell.run, self._log, self._read_trace)
        self._recorder = Recorder(cell.run, cell.spec.profile, self._is_busy, calls.read_sometimes)
        with self._recorder.recording():
            yield

    def mark_step(self) -> None:
        """Mark the end of a step; does nothing if no cell is being profiled."""
        if self._recorder is not None and not self._recorder.done.is_set():
            self._recorder.steps.mark()

    def read(self, run: int, timeout: float) -> bytes | None:
        """The encoded profile of ``run`` (0: the last), or None if it was not profiled. Waits for the cell's end."""
        recorder = self._recorder
        if recorder is None or run not in (0, recorder.run):
            return None
        recorder.done.wait(timeout)
        return msgspec.msgpack.encode(recorder.read())

    def trace(self, run: int) -> RankTrace | None:
        """All calls of a profiled run; None if it is another run."""
        calls = self._calls
        return calls.trace() if calls is not None and run == calls.run else None

    def _is_busy(self) -> bool:
        """Whether a collective that has returned a Work is in flight."""
        newest = self._log.all()[-_NEWEST:]
        return any(call.work_ref is not None and not call.is_done for call in newest)


class CallKeeper:
    """Keeps the calls of a long run, of which the log and torch's recorder keep only the newest."""

    def __init__(self, run: int, log: CallLog, read_trace: ReadTrace) -> None:
        self.run = run
        self._log = log
        self._read_trace = read_trace
        self._calls: dict[tuple[str, str, float], Call] = {}
        self._left_out = 0
        self._newest = 0
        self._read_at = 0.0
        self._lock = threading.Lock()

    def read_sometimes(self) -> None:
        """Read the calls if a reading is due and there are new ones."""
        now, newest = time.monotonic(), self._log.newest
        if now - self._read_at >= _EVERY and newest != self._newest:
            self._read_at, self._newest = now, newest
            self._read()

    def trace(self) -> RankTrace | None:
        """All calls so far, including the current ones."""
        found = self._read()
        if found is None:
            return None
        with self._lock:
            calls = sorted(self._calls.values(), key=lambda call: call.started)
        return msgspec.structs.replace(found, calls=tuple(calls), left_out=self._left_out)

    def _read(self) -> RankTrace | None:
        found = self._read_trace(self.run)
        if found is None:
            return None
        with self._lock:
            known = {(c.op, c.group, c.started) for c in found.calls}
            if found.left_out and self._calls and not known & self._calls.keys():
                self._left_out += 1  # at least one: some were dropped between two readings
            self._calls.update({(c.op, c.group, c.started): c for c in found.calls})
            while len(self._calls) > _MOST_CALLS:
                self._left_out += 1
                del self._calls[next(iter(self._calls))]
        return found
