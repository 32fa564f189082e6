"""Stepping: runs a paused thread to its next line, or to its next call of torch.distributed, and stops there.

As in pdb, a step also stops where a function is about to return, with the value that it returns.
Only the frames that were on the stack are traced (`sys.settrace`) and, for a step, those that they call. Nothing is
traced otherwise. Stepping to the next call needs no tracing: the call log runs a hook before each call.
"""

import dis
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jdist.core.messages.observation import Call, StepKind
from jdist.worker.observe.call_log import CallLog, LoggedCall

IsUserCode = Callable[[FrameType], bool]
_Statement = tuple[str, CodeType]  # File name of a cell, and the code that runs it.

_RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}


class Stop(NamedTuple):
    """Where a step has stopped, and what the thread is about to do there."""

    frame: FrameType
    call: Call | None = None  # It is about to begin this call.
    returned: tuple[Any, ...] = ()  # The frame is about to return this value, if there is one.


OnStop = Callable[[Stop], None]


class Stepper:
    """Makes a paused thread stop again. There is one per rank, since only one thread of a rank is paused at a time."""

    def __init__(self, log: CallLog, is_user_code: IsUserCode, upcoming: Callable[[LoggedCall, bool], Call | None]):
        self._log = log
        self._is_user_code = is_user_code
        self._upcoming = upcoming  # Describes a call that is about to begin; None if it will do nothing.
        self._trace: _Trace | None = None

    def begin(self, how: StepKind, frame: FrameType, line: int, on_stop: OnStop) -> None:
        """Call ``on_stop`` in this thread once it reaches the place that ``how`` specifies relative to ``frame``.

        The paused thread calls this before it resumes. ``on_stop`` may begin the next step.
        """
        self.end()
        if how == "next_call":
            self._log.on_call = self._before_call(threading.get_ident(), on_stop)
        elif how != "continue":
            self._trace = _Trace(how, frame, line, self._is_user_code, on_stop)
            self._trace.begin(sys._getframe())

    def end(self) -> None:
        """Cancel the step; can be called from any thread."""
        self._log.on_call = None
        if self._trace is not None:
            self._trace.end()
            self._trace = None

    def _before_call(self, thread: int, on_stop: OnStop) -> Callable[[LoggedCall, bool], None]:
        threads = {thread, threading.main_thread().ident}

        def stop(logged: LoggedCall, is_in_cpp: bool) -> None:
            frame = sys._getframe()
            if logged.thread not in threads or not any(map(self._is_user_code, _outwards(frame))):
                return
            call = self._upcoming(logged, is_in_cpp)
            if call is not None:
                self.end()
                on_stop(Stop(frame, call))

        return stop


class _Trace:
    """The tracing of one step in one thread. It ends when the step does."""

    def __init__(self, how: StepKind, frame: FrameType, line: int, is_user_code: IsUserCode, on_stop: OnStop):
        self._how = how
        self._frame = frame
        self._line = line
        self._is_user_code = is_user_code
        self._on_stop = on_stop
        self._thread = threading.get_ident()
        self._own = _statement(frame)
        self._statements: set[_Statement] = set()  # Of the cells that continue when a traced frame ends.
        self._is_over = False
        self._earlier: Any = None  # The thread's trace function, such as that of a coverage tool,
        self._replaced: list[tuple[FrameType, Any]] = []  # and those of frames.

    def begin(self, innermost: FrameType) -> None:
        own = innermost if self._how == "step" else self._frame
        for frame in filter(self._is_user_code, _outwards(own)):
            self._replaced.append((frame, frame.f_trace))
            frame.f_trace = self._handle
            if (statement := _statement(frame)) is not None:
                self._statements.add(statement)
        self._earlier = sys.gettrace()
        sys.settrace(self._handle)

    def end(self) -> None:
        """Stop tracing: now if called in the traced thread, otherwise at its next trace event."""
        self._is_over = True
        if threading.get_ident() != self._thread:
            return
        if sys.gettrace() == self._handle:  # otherwise something else, such as an interrupt, has replaced it
            sys.settrace(self._earlier)
        for frame, earlier in self._replaced:
            if frame.f_trace == self._handle:
                frame.f_trace = earlier
        self._replaced.clear()

    def _handle(self, frame: FrameType, event: str, value: Any) -> Any:
        """The trace function, of the thread ("call") and of the traced frames."""
        if self._is_over:
            self.end()
        elif event == "call":
            is_entered = self._is_user_code(frame) if self._how == "step" else _statement(frame) in self._statements
            return self._handle if is_entered else None
        elif event == "line" and self._stops_at_line(frame):
            self._stop(Stop(frame))
        elif event == "return" and _is_returning(frame):
            self._stop(Stop(frame, returned=(value,)))
        return None

    def _stop(self, stop: Stop) -> None:
        self.end()
        # Python traces nothing within a trace function: cells that run in the frame could not be interrupted there.
        sys.call_tracing(self._on_stop, (stop,))

    def _stops_at_line(self, frame: FrameType) -> bool:
        is_chosen = frame is self._frame or (self._own is not None and _statement(frame) == self._own)
        if not is_chosen:
            return True
        return self._how != "return" and (self._how != "until" or frame.f_lineno >= self._line)


def _statement(frame: FrameType) -> _Statement | None:
    """What all statements of a cell have in common, since IPython runs them one by one; None for other frames."""
    if frame.f_code.co_name != "<module>" or frame.f_back is None:
        return None
    return frame.f_code.co_filename, frame.f_back.f_code


def _is_returning(frame: FrameType) -> bool:
    """Whether a frame with a "return" event is a function's that returns, rather than yields, awaits or raises."""
    code = frame.f_code
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_code[frame.f_lasti] in _RETURNS


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back
