"""Frames in whose names cells run: those of a paused rank, and those of its last failure.

Names are read from the frames, and assignments are written back. The frames of the last failure are kept for cells to
run in, and a held cell is paused when it fails.
"""

import contextlib
import ctypes
import inspect
import linecache
import re
import sys
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from msgspec import Struct

from jdist.core.messages.base import QueryFailed
from jdist.core.messages.debug import DebugFailure, RankFailure, ReadStack, Stack
from jdist.core.messages.observation import StackFrame
from jdist.core.messages.runs import ExecuteCell
from jdist.worker.cells.shell import forget_last_error
from jdist.worker.cells.user_code import OWN, described, installed_path
from jdist.worker.compat.ipykernel import cell_numbers
from jdist.worker.process import ScriptExit

_ROOT = InteractiveShell.run_code.__code__  # The code that runs a cell; the cell's frame is the next one.

_OF_SHELL = re.compile(r"_+|_(oh|ih|dh|exit_code|i*|i?\d+)|In|Out")  # Names that IPython binds.

FrameAt = tuple[FrameType, int]  # A frame, and the line that it is at.


class UserCode:
    """Distinguishes the user's own code from installed libraries, and describes frames."""

    def __init__(self, shell: Any, run_of: Callable[[int], int]):
        self._cells: Mapping[str, int] = cell_numbers(shell)
        self._run_of = run_of  # The run whose cell had an execution count.

    def __call__(self, frame: FrameType) -> bool:
        """Whether a frame belongs to a cell, a script or one of the user's modules."""
        file = frame.f_code.co_filename
        return file in self._cells or not (file.startswith("<") or installed_path(file))

    def describe(self, frame: FrameType, line: int) -> StackFrame:
        code = frame.f_code
        is_cell = code.co_filename in self._cells
        return StackFrame(
            function="<cell>" if is_cell and code.co_name == "<module>" else code.co_qualname,
            file="" if is_cell else code.co_filename,
            line=line,
            source=linecache.getline(code.co_filename, line, frame.f_globals).strip(),
            run=self._run_of(self._cells[code.co_filename]) if is_cell else 0,
            is_user_code=self(frame),
        )


def is_own(frame: FrameType) -> bool:
    """Whether a frame belongs to jdist."""
    return frame.f_code.co_filename.startswith(OWN)


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame, its caller, and so on, up to the cell's own frame."""
    while frame is not None and frame.f_code is not _ROOT:
        yield frame
        frame = frame.f_back


class FrameStack:
    """The frames of a cell, outermost first, and the one in which other cells run."""

    def __init__(self, frames: Sequence[FrameAt], is_user_code: UserCode, session: dict[str, Any]):
        self._frames = [pair for pair in frames if not is_own(pair[0])] or list(frames)
        self._is_user_code = is_user_code
        self._session = session  # The names of the rank's cells, which are visible in each frame after its own.
        self._names: dict[int, FrameNames] = {}
        self._lock = threading.Lock()  # Guards the dictionary, which queries read in other threads.
        users = [place for place, (frame, _) in enumerate(self._frames) if is_user_code(frame)]
        self.chosen = users[-1] if users else len(self._frames) - 1

    @classmethod
    def of(cls, frame: FrameType, is_user_code: UserCode, session: dict[str, Any]) -> "FrameStack":
        """The stack of a suspended frame."""
        frames = [(f, f.f_lineno) for f in outwards(frame)][::-1]
        # In a task or thread of the cell, the code that runs it comes first.
        own = [place for place, (f, _) in enumerate(frames) if is_user_code(f)]
        return cls(frames[own[0] :] if own else frames, is_user_code, session)

    def choose(self, query: ReadStack) -> None:
        """Choose another frame, up to either end of the stack.

        Moves are among the frames of user code, and those that the innermost of them has called.
        """
        last = len(self._frames) - 1
        if query.index >= 0:
            self.chosen = min(query.index, last)
        if query.move:
            users = [place for place, (frame, _) in enumerate(self._frames) if self._is_user_code(frame)]
            places = [*users[:-1], *range(users[-1] if users else 0, last + 1)]
            at = bisect_left(places, self.chosen) if query.move > 0 else bisect_right(places, self.chosen) - 1
            self.chosen = places[min(max(at - query.move, 0), len(places) - 1)]

    @property
    def frame(self) -> FrameType:
        """The chosen frame."""
        return self._frames[self.chosen][0]

    @property
    def at(self) -> StackFrame:
        """The chosen frame, described."""
        return self._is_user_code.describe(*self._frames[self.chosen])

    def describe(self) -> tuple[StackFrame, ...]:
        return tuple(self._is_user_code.describe(*pair) for pair in self._frames)

    @property
    def names(self) -> "FrameNames":
        """The names of the chosen frame."""
        with self._lock:
            place = self.chosen
            if place not in self._names:
                self._names[place] = FrameNames(self._frames[place][0], self._session)
            return self._names[place]


class FrameNames:
    """A frame's names as one dictionary: its local variables, then its module's names, then the session's.

    Assignments of cells to local variables and to names of the module are written back. Any other name that a cell
    assigns is only in the dictionary, which is always the same object, since functions defined by cells refer to it.

    Cells run in one thread while queries read and bind names in other threads. The dictionary is updated from the frame
    only while none of them is using it, so that no assignment is lost. Each writes its changes to the frame when done.
    """

    def __init__(self, frame: FrameType, session: dict[str, Any]):
        self._frame = frame
        self._session = session
        self._is_session = frame.f_locals is frame.f_globals is session  # The frame of a cell.
        self._names: dict[str, Any] = session if self._is_session else {}
        self._before: dict[str, Any] = {}
        self._added: set[str] = set()  # Names that cells have assigned and that do not belong to the frame.
        self._users = 0  # Threads that may be changing the dictionary.
        self._lock = (
            threading.RLock()
        )  # Guards the attributes above, but not changes that cells make to the dictionary.
        code = frame.f_code
        self._variables = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}

    def read(self) -> dict[str, Any]:
        """The dictionary, updated from the frame unless it is in use."""
        with self._lock:
            if not self._users and not self._is_session:
                self._update()
            return self._names

    def add(self, name: str, value: Any) -> None:
        """Bind a name that does not belong to the frame."""
        with self._lock:
            self.read()[name] = value
            self._added.add(name)

    @contextlib.contextmanager
    def used(self) -> Iterator[dict[str, Any]]:
        """The dictionary, for a context that may change it; on exit, the changes are written to the frame."""
        with self._lock:
            names = self.read()
            self._users += 1
        try:
            yield names
        finally:
            with self._lock:
                self._users -= 1
                if not self._is_session:
                    self._write()

    def _update(self) -> None:
        local = dict(self._frame.f_locals)
        found = {**self._session, **self._frame.f_globals, **local}
        for name in self._names.keys() - found.keys() - self._added:
            del self._names[name]
        self._names.update((name, value) for name, value in found.items() if name in local or name not in self._added)
        self._before = dict(self._names)

    @contextlib.contextmanager
    def entered(self, shell: Any) -> Iterator[None]:
        """Make the shell run cells with these names."""
        outer, hook = (shell.user_ns, shell.user_module), shell.displayhook
        # IPython updates these names only while they still have the values that it assigned.
        values = [n for n in ("_", "__", "___") if n in outer[0] and outer[0][n] is getattr(hook, n, None)]
        with self.used() as names:
            if names is not shell.user_ns:
                shell.user_ns, shell.user_module = names, _Module(names)
            try:
                yield
            finally:
                shell.user_ns, shell.user_module = outer
                shell.user_ns.update((name, getattr(hook, name)) for name in values)

    def _write(self) -> None:
        missing, now = object(), dict(self._names)
        changed = {n: v for n, v in now.items() if self._before.get(n, missing) is not v}
        gone = self._before.keys() - now.keys()
        self._before = now
        if self._frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            mine = self._variables & (changed.keys() | gone)
            module = {name for name in changed.keys() - mine if name in self._frame.f_globals}
        else:  # of a script, a module or a class: every assigned name becomes one of its names
            mine, module = changed.keys() | gone, set()
        mine, module = ({n for n in names if not _OF_SHELL.fullmatch(n)} for names in (mine, module))
        self._added |= changed.keys() - mine - module
        self._frame.f_globals.update((n, changed[n]) for n in module)
        _write_variables(self._frame, {n: changed[n] for n in mine & changed.keys()}, mine & gone)


class _Module:
    """Stands for the module in whose dictionary the shell runs cells."""

    def __init__(self, names: dict[str, Any]):
        self.__dict__ = names


def _write_variables(frame: FrameType, values: Mapping[str, Any], gone: set[str]) -> None:
    """Bind and unbind variables of a suspended frame. Those of a function can be unbound only before Python 3.12."""
    if not values and not gone:
        return
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    found = frame.f_locals
    found.update(values)
    if not is_function or sys.version_info < (3, 12):
        for name in gone & found.keys():
            del found[name]
    if is_function and sys.version_info < (3, 13):  # from then on, f_locals writes through (PEP 667)
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(sys.version_info < (3, 12)))


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
        self._held = cell.run if cell.spec.holds else 0
        if cell.spec.in_failure and self.failure is not None:
            return self.failure.stack.names.entered(self._shell)
        if not (cell.spec.in_failure or cell.spec.is_internal or cell.spec.is_setup):
            self.failure = None
        return contextlib.nullcontext()

    def end(self, cell: ExecuteCell, error: BaseException | None) -> None:
        """A cell, or one that ran in its frames, has ended."""
        if cell.in_run:
            return
        self._held = 0
        if error is not None and not (cell.spec.in_failure or cell.spec.is_internal):
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
