"""The recorder: runs a cell under torch.profiler, and reads the recording before it takes too much memory.

torch keeps everything in memory until it is stopped, and then needs 10 µs per operator. So the recording is divided
into windows. A window ends when it holds about `_MOST_RECORDED` operators, and the next one begins at the next moment
of the series 10 s, 20 s, 40 s, … after the cell's start, on all ranks at about the same time. Where operators are
long, a window lasts as long as the cell. The main thread ends and begins windows where a step or scope ends or, asked
by a watcher thread, between two bytecodes. None begins while a scope may be open, because torch would then close the
scope in freed memory.
"""

import ctypes
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psutil
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerAction, schedule

from jdist.core.errors import describe_error
from jdist.core.profile import ProfileOptions, RankProfile
from jdist.worker.compat import profiler
from jdist.worker.profile.operator_table import OperatorTable

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
