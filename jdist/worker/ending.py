"""Ending: the end of a rank's process, at which everything is done that is done at the end of a kernel.

Other threads that are no daemons finish, exit functions run, names and modules are released, files that were left open
are flushed, and the C library's own exit functions run. What is left out is the interpreter's finalization: it takes as
long as all of the rest, and C++ threads such as gloo's have been seen to abort in it.

What does not end in time is described to the agent, and cut off.
"""

import atexit
import contextlib
import ctypes
import gc
import io
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NoReturn, Self

from jdist.worker.cells.imports import is_users_file, users_modules
from jdist.worker.session.crash import FATAL

_SENT = 0.2  # Seconds for the last message to leave.
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)


class Ending:
    """The end of this process. Made on the main thread, while descriptor 2 is the rank's log file."""

    def __init__(self) -> None:
        self._cells: Mapping[str, int] = {}
        self._before_exit: Callable[[], None] = lambda: None
        self._stage = ""
        self._log = os.dup(2)

    def connected(self, cells: Mapping[str, int], before_exit: Callable[[], None]) -> Self:
        """Get the execution count of each cell by the name of its file, and what to call before exit functions."""
        self._cells, self._before_exit = cells, before_exit
        return self

    # ------------------------------------------------------------ the main thread

    def finish(self) -> NoReturn:
        """End the process, once the kernel's loop has ended."""
        self._before_exit()
        self._stage = "threads"
        _join_threads()
        self._stage = "exit functions"
        _run_exit_functions()
        for fd in (1, 2):  # what was captured there cannot be sent any more
            os.dup2(self._log, fd)
        self._stage = "names"
        for module in users_modules():  # as the interpreter does it: what only they hold is released
            vars(module).clear()
        gc.collect()
        _flush_files()
        self._stage = "libraries"
        _exit()

    # ------------------------------------------------------------ a helper thread

    def cut_off(self, deadline: float, report: Callable[[str], None], cell: Callable[[], str]) -> NoReturn:
        """At ``deadline`` (time.monotonic), report what is under way, and end the process.

        ``cell`` describes the cell that runs; "" if none does.
        """
        time.sleep(max(0.0, deadline - time.monotonic()))
        report(cell() or self._describe())
        time.sleep(_SENT)
        os._exit(1)

    def _describe(self) -> str:
        frames = sys._current_frames()
        main = frames.get(threading.main_thread().ident or 0)
        if self._stage == "threads":
            waited = (t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread())
            return "; ".join(f"thread {t.name!r} was in {self._place(frames.get(t.ident or 0))}" for t in waited)
        if self._stage == "exit functions":
            return f"it was in the exit function {self._place(main)}"
        if self._stage == "names":
            return f"its variables were being released, in {self._place(main)}"
        return "the exit functions of its C libraries were running"

    def _place(self, frame: FrameType | None) -> str:
        """The user's outermost function on a stack, and the line where it is."""
        found = None
        while frame is not None:
            file = frame.f_code.co_filename
            if file in self._cells or is_users_file(file):
                found = frame
            frame = frame.f_back
        if found is None:
            return "Python's own code"
        file = found.f_code.co_filename
        where = f"cell {self._cells[file]}" if file in self._cells else os.path.basename(file)
        return f"{found.f_code.co_qualname} ({where}, line {found.f_lineno})"


def _join_threads() -> None:
    """Wait for threads that are no daemons, and for the tasks of executors; on the main thread."""
    private: Any = threading
    private._shutdown()  # noqa: SLF001 — as multiprocessing does


def _run_exit_functions() -> None:
    """Call what was registered with :mod:`atexit`, the last first; errors are printed."""
    private: Any = atexit
    private._run_exitfuncs()  # noqa: SLF001 — as multiprocessing does


def _flush_files() -> None:
    """Flush files that objects hold which nothing has released."""
    for each in gc.get_objects():
        if issubclass(type(each), _WRITERS):
            with contextlib.suppress(Exception):  # it is closed, or its disk is full
                each.flush()


def _exit() -> NoReturn:
    """Exit as a C program does, which also flushes what C libraries have buffered.

    A fault in one of them loses nothing: it is not reported as a crash, and leaves no core file.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    libc: Any = ctypes.PyDLL(None)  # It keeps the interpreter's lock, so that no other thread runs Python meanwhile.
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    for number in FATAL:
        libc.signal(int(number), int(signal.SIG_DFL))
    libc.exit(0)
    os._exit(0)
