"""Post-mortem: keeps the frames of the last failure for cells to run in, and pauses held cells when they fail."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from jdist.core.messages.base import QueryFailed
from jdist.core.messages.debug import DebugFailure, RankFailure, ReadStack, Stack
from jdist.core.messages.runs import ExecuteCell
from jdist.worker.debug.frames import FrameAt, FrameStack, UserCode
from jdist.worker.kernel.guarded import described
from jdist.worker.kernel.shell import forget_last_error
from jdist.worker.process import ScriptExit


class CellFailure(Struct):
    """The failure of a cell."""

    run: int
    error: str  # Such as "ValueError: no such file".
    frames: list[FrameAt]  # Outermost first, starting with the cell.
    stack: FrameStack  # The same.
    is_debugged: bool = False  # Whether cells may run in it.


class PostMortem:
    """Keeps the last failure of a cell until the next cell begins. One per rank."""

    def __init__(self, shell: Any, is_user_code: UserCode, pause: Callable[[CellFailure], None]):
        """Call it on the main thread. ``pause`` gets each failure of a held cell before it is shown."""
        self._shell = shell
        self._is_user_code = is_user_code
        self._pause = pause
        self._session: dict[str, Any] = shell.user_ns
        self._held = 0  # The run that pauses if it fails.
        self.failure: CellFailure | None = None
        self._stop_before_tracebacks()

    def begin(self, cell: ExecuteCell) -> contextlib.AbstractContextManager[None]:
        """The context in which a cell is to run. An ordinary cell of the user discards the last failure."""
        self._held = cell.run if cell.holds else 0
        if cell.in_failure and self.failure is not None:
            return self.failure.stack.names.entered(self._shell)
        if not (cell.in_failure or cell.is_internal or cell.is_setup):
            self.failure = None
        return contextlib.nullcontext()

    def end(self, cell: ExecuteCell, error: BaseException | None) -> None:
        """A cell, or one that ran in its frames, has ended."""
        if cell.in_run:
            return
        self._held = 0
        if error is not None and not (cell.in_failure or cell.is_internal):
            self.failure = self._failure(cell.run, error)

    def answer(self, query: DebugFailure | ReadStack) -> Stack | RankFailure | QueryFailed:
        """The stack of the last failure, after choosing another frame; a query that ends debugging frees its frames."""
        reply = self._answer(query)
        if isinstance(query, DebugFailure) and query.ends:
            self.failure = None
            forget_last_error(self._shell)
        return reply

    def _answer(self, query: DebugFailure | ReadStack) -> Stack | RankFailure | QueryFailed:
        failure = self.failure
        if failure is None:
            return QueryFailed("the last cell did not fail, or it failed before any of its code ran")
        if isinstance(query, DebugFailure):
            if query.run not in (0, failure.run):
                return QueryFailed(f"the last failure was in run {failure.run}")
            failure.is_debugged = True
        elif not failure.is_debugged:
            return RankFailure(failure.run)
        else:
            failure.stack.choose(query)
        return Stack(failure.stack.describe(), failure.stack.chosen, failure.run, "failure", failure.error)

    def _stop_before_tracebacks(self) -> None:
        """Make the shell pause on a held cell's failure before it shows the traceback."""
        show = self._shell.showtraceback

        def showtraceback(*args: Any, running_compiled_code: bool = False, **kwargs: Any) -> None:
            error = sys.exc_info()[1]
            if self._held and running_compiled_code and isinstance(error, Exception):
                self._stop(error)
            show(*args, running_compiled_code=running_compiled_code, **kwargs)

        self._shell.showtraceback = showtraceback

    def _stop(self, error: Exception) -> None:
        failure = self._failure(self._held, error)
        if failure is not None:
            with contextlib.suppress(KeyboardInterrupt):  # the cell ends with its own error
                self._pause(failure)

    def _failure(self, run: int, error: BaseException) -> CellFailure | None:
        """The failure; None if the cell failed before any of its code ran."""
        frames: list[FrameAt] = []
        # A script's sys.exit is reported as an error that jdist raises.
        tb = (error.__context__ or error if isinstance(error, ScriptExit) else error).__traceback__
        while tb is not None:
            if frames or self._is_user_code(tb.tb_frame):
                frames.append((tb.tb_frame, tb.tb_lineno))
            tb = tb.tb_next
        if not frames:
            return None
        return CellFailure(run, described(error), frames, FrameStack(frames, self._is_user_code, self._session))
