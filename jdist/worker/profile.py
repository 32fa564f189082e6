"""Profile a rank's cells under torch.profiler within limits on memory and time, and keep the last profile.

A cell marks the end of a step with ``jdist.profile_step``.

torch keeps everything in memory until the profiler is stopped, and then needs 10 µs per operator. So the recording is
divided into windows. A window ends when it holds about `_MOST_RECORDED` operators, and the next one begins at the next
moment of the series 10 s, 20 s, 40 s, … after the cell's start, on all ranks at about the same time. Where operators
are long, a window lasts as long as the cell. The main thread ends and begins windows where a step or scope ends or,
when a watcher thread asks, between two bytecodes. None begins while a scope may be open, because torch would then close
the scope in freed memory.

The operators of a profile are a table in columns; if there are too many, the shortest are dropped.
"""

import ctypes
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import psutil
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerAction, schedule

from jdist.core.errors import describe_error
from jdist.core.messages.observation import Call, RankTrace
from jdist.core.messages.runs import ExecuteCell
from jdist.core.profile import COLLECTIVE, KERNEL, MAIN, OPERATOR, SCOPE, ProfileOptions, RankProfile
from jdist.worker.compat import profiler
from jdist.worker.compat.profiler import RawEvent
from jdist.worker.observe.call_log import CallLog

_COMMUNICATION = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:")
_SLACK = 2  # While recording, this many times the final number of operators is kept.
_LONGEST_NAME = 3 * 10**15  # Nanoseconds; an event without an end is cut at the end of its window.
_DTYPE = np.dtype([("start", "<i8"), ("duration", "<i8"), ("name", "<u4"), ("thread", "<u2"), ("kind", "u1")])
Columns = Any  # An array of _DTYPE, sorted by start.


class OperatorTable:
    """Operators of one rank, of which at most ``most`` remain at the end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[int, int], int] = {}  # By thread and stream.
        self._parts: list[Columns] = []
        self._count = 0
        self.left_out = 0
        self.longest_left_out = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    @property
    def threads(self) -> tuple[str, ...]:
        """The name of each thread; the main thread is always included."""
        others = [f"stream {s}" if s >= 0 else f"thread {t}" for t, s in list(self._threads)[1:]]
        return ("main thread", *others)

    def add(self, events: Sequence[RawEvent], main: int, window: tuple[int, int]) -> None:
        """Add the recording of a window, in which ``main`` is the main thread's number."""
        self._threads.setdefault((main, -1), MAIN)
        names, threads = self._names, self._threads
        begin, end = window
        found = np.empty(len(events), _DTYPE)
        for i, (name, start, duration, thread, is_scope, is_async, stream) in enumerate(events):
            lane = (0 if stream >= 0 else thread, stream)
            kind = KERNEL if stream >= 0 else SCOPE if is_scope else OPERATOR
            if kind == SCOPE and (is_async or name.startswith(_COMMUNICATION)):
                kind = COLLECTIVE
            longest = max(0, end - start)
            found[i] = (
                start,
                min(duration, longest) if 0 <= duration < _LONGEST_NAME else longest,
                names.setdefault(name, len(names)),
                min(threads.setdefault(lane, len(threads)), 2**16 - 1),
                kind,
            )
        found = found[(found["start"] >= begin) & (found["start"] <= end)]
        self._parts.append(found)
        self._count += len(found)
        if self._count > _SLACK * self._most:
            self._leave_out()

    def columns(self) -> Columns:
        """All operators that are kept."""
        if self._count > self._most:
            self._leave_out()
        return self._joined()

    def _joined(self) -> Columns:
        joined = np.concatenate(self._parts) if self._parts else np.empty(0, _DTYPE)
        joined = joined[np.lexsort((-joined["duration"], joined["start"]))]
        self._parts = [joined]
        return joined

    def _leave_out(self) -> None:
        """Drop the shortest. Collectives are dropped last, since they show who waited for whom."""
        everything = self._joined()
        weight = everything["duration"].copy()
        matters = everything["kind"] == COLLECTIVE
        if matters.sum() <= self._most // 2:
            weight[matters] = _LONGEST_NAME
        order = np.argsort(weight, kind="stable")
        gone = np.zeros(len(everything), bool)
        gone[order[: max(0, len(everything) - self._most)]] = True
        kept = everything[~gone]
        self.left_out += int(gone.sum())
        if gone.any():
            self.longest_left_out = max(self.longest_left_out, int(everything["duration"][gone].max()))
        self._parts, self._count = [kept], len(kept)


_log = logging.getLogger("jdist.worker")

_MOST_RECORDED = 100_000  # Operators of windows that follow each other.
_MOST_TABULATED = 50_000  # Operators of which torch's table is made, when the profile is read: three seconds.
_FIRST = 1.0  # Seconds until a window is first read, which gives the rate of operators.
_LONGEST = 30.0  # Seconds after which a window is read again at the latest.
_GROWTH = 4  # Limit on the factor by which the time between two readings grows.
_MOST_MEMORY = 1 << 30  # Bytes by which the process may grow before its window is read.
_SERIES = 10.0  # Seconds after the cell's start at which a window begins if the last one was full; then twice that, …
_TICK = 0.1  # Seconds between two checks of the watcher thread.
_PATIENCE = 2.0  # Seconds to wait for scopes to end; after that the window ends and the next one is delayed.
_DRAIN = 1.0  # Seconds to wait for collectives in flight before the last window ends.
_MOST_STEPS = 100_000  # Number of steps whose ends are kept.
_MARK = "jdist: begins to record"

_HELD = {signal.SIGINT, signal.SIGRTMAX - 3}  # Would raise or pause in the middle of a change of the profiler.
_RECORDED = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
_Pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Steps:
    """Counts the steps of one profiled cell. Once the cell marks a step itself, optimizers are ignored.

    Of several optimizers, only the first one that steps is counted.
    """

    def __init__(self, options: ProfileOptions, on_step: Callable[[FrameType | None], None]) -> None:
        """``on_step`` gets the frame that marks a step, or None within the scope of an optimizer."""
        self.count = 0
        self.ends: list[int] = []  # Nanoseconds of the wall clock.
        self._on_step = on_step
        self._optimizer: Any = None
        self._is_marked = False
        self._thread = threading.get_ident()
        self._action = None
        if options.active:
            cycle = {"wait": options.wait, "warmup": options.warmup, "active": options.active}
            self._action = schedule(**cycle, repeat=options.repeat)

    @property
    def is_due(self) -> bool:
        """Whether the current step is to be recorded."""
        return self._action is None or self._action(self.count) in _RECORDED

    def mark(self) -> None:
        """Mark the end of a step."""
        if threading.get_ident() == self._thread:
            self._is_marked = True
            self._end(sys._getframe())

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the steps of optimizers in this context."""

        def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._is_marked or threading.get_ident() != self._thread:
                return
            if self._optimizer is None:
                self._optimizer = optimizer
            if optimizer is self._optimizer:
                self._end(None)

        hook = register_optimizer_step_post_hook(stepped)
        try:
            yield
        finally:
            hook.remove()
            self._optimizer = None

    def _end(self, frame: FrameType | None) -> None:
        self.count += 1
        if len(self.ends) < _MOST_STEPS:
            self.ends.append(time.time_ns())
        self._on_step(frame)


class Recorder:
    """Records one cell. All but the watcher runs on the main thread."""

    def __init__(
        self, run: int, options: ProfileOptions, is_busy: Callable[[], bool], on_tick: Callable[[], None]
    ) -> None:
        """``is_busy``: whether a collective is in flight; ``on_tick`` is called periodically, on its own thread."""
        self.run = run
        self.began = time.time_ns()
        self.ended = 0
        self.reason = ""
        self.steps = Steps(options, self._stepped)
        self.done = threading.Event()
        self._is_scheduled = bool(options.active)
        self._activities = options.activities or ("cpu", "cuda")
        self._is_busy = is_busy
        self._on_tick = on_tick
        self._kept = OperatorTable(options.most_operators)
        self._scopes = profiler.OpenScopes(self._turn_if_asked)
        self._recording: Any = None
        self._for_table: list[Any] = []  # Recordings of which torch's table will be made.
        self._room = _MOST_TABULATED
        self._table, self._tabulated = "", 0
        self._reading = threading.Lock()
        self._is_changing = False
        self._window = 0  # When the part that is recorded now began.
        self._windows: list[tuple[int, int]] = []
        self._in_window = 0  # Operators read of the window so far.
        self._read_after = _FIRST
        self._resumes_at = 0.0  # Seconds after the cell's start at which the next window begins.
        self._memory = 0
        self._is_asked = False  # Whether the main thread is to end the recording, or to begin one.
        self._refused_at = 0.0  # Since when a window that is to be read waits for scopes to end.
        self._look = _Pending(self._looked)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs on this thread within this block."""
        threads = [threading.Thread(target=t, name="jdist-profile", daemon=True) for t in (self._watch, self._tick)]
        try:
            with self._scopes.counted(), self.steps.counted():
                if self.steps.is_due:
                    self._begin()
                for thread in threads:
                    thread.start()
                try:
                    yield
                finally:
                    self._finish()
        finally:
            self.done.set()

    def read(self) -> RankProfile:
        """The recording, once the cell is over."""
        with self._reading:
            self._make_table()
        columns, began = self._kept.columns(), self.began
        return RankProfile(
            run=self.run,
            began=began / 1e9,
            ended=self.ended / 1e9,
            names=self._kept.names,
            threads=self._kept.threads,
            starts=(columns["start"] - began).tobytes(),
            durations=columns["duration"].tobytes(),
            name=columns["name"].tobytes(),
            thread=columns["thread"].tobytes(),
            kind=columns["kind"].tobytes(),
            windows=tuple(((b - began) / 1e9, (e - began) / 1e9) for b, e in self._windows),
            steps=tuple((end - began) / 1e9 for end in self.steps.ends),
            left_out=self._kept.left_out,
            longest_left_out=self._kept.longest_left_out,
            reason=self.reason,
            table=self._table,
            tabulated=self._tabulated,
        )

    def _make_table(self) -> None:
        """Make torch's table, once, and let go of what it is made of."""
        recordings, self._for_table = self._for_table, []
        if recordings:
            try:
                self._table, self._tabulated = profiler.operator_table(recordings), len(recordings)
            except Exception as e:
                self.reason = self.reason or f"torch.profiler could not sum up the operators: {describe_error(e)}"

    # ------------------------------------------------------------ windows

    def _begin(self) -> None:
        if self._recording is not None or self.reason:
            return
        try:
            with self._changing():
                self._recording = profiler.start(self._activities)
                with torch.autograd.profiler.record_function(_MARK):
                    self._window = time.time_ns()
                self._scopes.note_recording(True)
        except Exception as e:  # the cell has a profiler of its own, or torch was built without one
            self.reason = f"torch.profiler could not be started: {describe_error(e)}"
            return
        self._memory = psutil.Process().memory_info().rss

    def _end(self) -> None:
        """End the current recording and read it."""
        if self._recording is None:
            return
        with self._changing():
            recording, self._recording = self._recording, None
            self._refused_at = 0.0
            self._scopes.note_recording(False)
            end = time.time_ns()
            try:
                self._read(recording, profiler.stop(recording), end)
            except Exception as e:
                self.reason = f"torch.profiler could not be read: {describe_error(e)}"

    def _read(self, recording: Any, events: list[profiler.RawEvent], end: int) -> None:
        main = next((thread for name, _, _, thread, *_ in events if name == _MARK), None)
        if main is None:
            self.reason = "the cell used a profiler of its own, which replaced this one"
            return
        self._kept.add([e for e in events if e[0] != _MARK], main, (self._window, end))
        if len(events) <= self._room:
            self._room -= len(events)
            self._for_table.append(recording)
        self._windows.append((self._window, end))
        seconds = (end - self._window) / 1e9
        self._in_window += len(events)
        rate = len(events) / max(seconds, 1e-3)
        most = max(0, _MOST_RECORDED - self._in_window) / max(rate, 1e-3)
        self._read_after = min(max(most, _FIRST), _GROWTH * max(seconds, _FIRST), _LONGEST)
        if self._in_window >= _MOST_RECORDED:
            self._resumes_at = _SERIES
            while self._resumes_at < self._seconds + self._read_after:
                self._resumes_at *= 2
            _log.debug("run %d: %d operators, the next from %.0f s on", self.run, self._in_window, self._resumes_at)

    def _finish(self) -> None:
        self.ended = time.time_ns()
        deadline = time.monotonic() + _DRAIN
        while self._recording is not None and self._is_busy() and time.monotonic() < deadline:
            time.sleep(_TICK / 10)
        self._end()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the profiler: signals to this thread, and other changes, are deferred until the end of the block."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        self._is_changing = True
        try:
            yield
        finally:
            self._is_changing = False
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def _seconds(self) -> float:
        return (time.time_ns() - self.began) / 1e9

    # ------------------------------------------------------------ when windows end and begin

    def _stepped(self, frame: FrameType | None) -> None:
        """A step has ended: the schedule determines whether the next one is recorded."""
        if self._is_scheduled and self.steps.is_due != (self._recording is not None):
            if self._recording is not None:
                self._end()
                self._in_window, self._resumes_at = 0, 0.0
            elif self._seconds >= self._resumes_at and not self._scopes:
                self._begin()
        elif frame is not None:
            self._turn_if_asked(frame)

    def _tick(self) -> None:
        while not self.done.wait(_TICK):
            self._on_tick()

    def _watch(self) -> None:
        while not self.done.wait(_TICK):
            if self._is_wanted():
                self._is_asked = True
                ctypes.pythonapi.Py_AddPendingCall(self._look, None)

    def _is_wanted(self) -> bool:
        """Whether the main thread should end the current recording, or begin a window."""
        if self._recording is None:
            return not self.reason and not self._is_scheduled and self._seconds >= self._resumes_at
        is_long = time.time_ns() - self._window >= self._read_after * 1e9
        return is_long or psutil.Process().memory_info().rss - self._memory > _MOST_MEMORY

    def _looked(self, _: Any) -> int:
        """Between two bytecodes of the main thread."""
        self._turn_if_asked(sys._getframe(1))
        return 0

    def _turn_if_asked(self, frame: FrameType | None) -> None:
        """``frame``: the innermost one that may be within an operator."""
        try:
            if self._is_asked and not self.done.is_set() and not self.ended and not self._is_changing:
                self._turn(frame)
        except BaseException as e:  # it would appear in the cell's own code
            self.reason = self.reason or describe_error(e)
            _log.exception("run %d is not recorded any more", self.run)

    def _turn(self, frame: FrameType | None) -> None:
        """End the current recording and begin the next one, where that is safe."""
        can_begin = not self._scopes and not profiler.may_have_scopes(frame) and not self._is_busy()
        if self._recording is not None:
            self._refused_at = self._refused_at or time.monotonic()
            if can_begin or time.monotonic() - self._refused_at >= _PATIENCE:
                self._end()
                self._is_asked = False
            can_begin = can_begin and self._in_window < _MOST_RECORDED
        elif can_begin:
            self._in_window, self._read_after, self._is_asked = 0, _FIRST, False
        if can_begin and self.steps.is_due:
            self._begin()


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


_markers: list[Callable[[], None]] = []  # That of the process's profiler, if the process is a rank.


def profile_step() -> None:
    """Mark the end of a training step, for a profile. Does nothing if the cell is not being profiled.

    Without it, the steps of the first optimizer are counted.
    """
    for marker in _markers:
        marker()


def connect_steps(marker: Callable[[], None]) -> None:
    """Make :func:`profile_step` call ``marker``, and nothing else."""
    _markers[:] = [marker]
