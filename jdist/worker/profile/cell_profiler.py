"""The cell profiler: a rank's profiled cells, of which the last one's profile and calls are kept for the client."""

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

_MOST_CALLS = 40_000  # Calls of a run that are kept.
_NEWEST = 256  # Recent calls of which one may be in flight.
_EVERY = 2.0  # Seconds between two readings of the calls, of which torch and the log keep the newest.

ReadTrace = Callable[[int], RankTrace | None]


class CellProfiler:
    """Profiles the cells of one rank that are to be profiled."""

    def __init__(self, log: CallLog, read_trace: ReadTrace) -> None:
        self._log = log
        self._read_trace = read_trace
        self._recorder: Recorder | None = None
        self._calls: CallKeeper | None = None

    @contextmanager
    def around(self, cell: ExecuteCell) -> Iterator[None]:
        """Run a cell within this block, on the main thread."""
        if cell.profile is None:
            yield
            return
        calls = self._calls = CallKeeper(cell.run, self._log, self._read_trace)
        self._recorder = Recorder(cell.run, cell.profile, self._is_busy, calls.read_sometimes)
        with self._recorder.recording():
            yield

    def mark_step(self) -> None:
        """The cell says that a step has ended; without effect where none is profiled."""
        if self._recorder is not None and not self._recorder.done.is_set():
            self._recorder.steps.mark()

    def read(self, run: int, timeout: float) -> bytes | None:
        """The encoded profile of ``run`` (0: the last one), None if it was not profiled; waits for its cell's end."""
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
    """Keeps the calls of a run, which the log and torch's recorder forget in a long one."""

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
        """Keep the calls that there are, if it is time and there are new ones."""
        now, newest = time.monotonic(), self._log.newest
        if now - self._read_at >= _EVERY and newest != self._newest:
            self._read_at, self._newest = now, newest
            self._read()

    def trace(self) -> RankTrace | None:
        """All that are known, with those that are known now."""
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
                self._left_out += 1  # at least: some were forgotten between two readings
            self._calls.update({(c.op, c.group, c.started): c for c in found.calls})
            while len(self._calls) > _MOST_CALLS:
                self._left_out += 1
                del self._calls[next(iter(self._calls))]
        return found
