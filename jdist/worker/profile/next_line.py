"""The next line: calls a function as soon as the code that called into torch reaches its next line."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from jdist.worker.compat.profiler import is_of_torch


class NextLine:
    """Traces a single frame of the main thread until the function accepts a line."""

    def __init__(self, reached: Callable[[FrameType], bool]) -> None:
        self._reached = reached
        self._frame: FrameType | None = None

    def start(self, frame: FrameType | None) -> None:
        """Trace the innermost frame of this stack outside torch; does nothing if a trace function is already set."""
        if self._frame is not None or sys.gettrace() is not None:
            return
        safe, each = frame, frame
        while each is not None:
            if is_of_torch(each):
                safe = each.f_back
            each = each.f_back
        if safe is not None:
            self._frame = safe
            safe.f_trace = self._line
            sys.settrace(self._call)

    def stop(self) -> None:
        """Stop tracing."""
        frame, self._frame = self._frame, None
        if frame is not None and sys.gettrace() == self._call:  # else the debugger steps through it now
            frame.f_trace = None
            sys.settrace(None)

    def _call(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        """Frames that are entered in the meantime are not traced."""
        if self._frame is None:  # the debugger has restored what it had found
            sys.settrace(None)

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return" and frame.f_back is not None and self._frame is not None:
            self._frame = frame.f_back  # its caller's next line, then
            self._frame.f_trace = self._line
            frame.f_trace = None
        elif event == "line" and self._reached(frame):
            self.stop()
        return self._line
