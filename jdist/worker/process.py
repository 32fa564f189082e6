"""What this process is: which rank, and whether a torchrun script runs in it, as ``__main__`` in the live session.

The whole worker may import this module, which imports nothing of the worker.

A reserve of descriptors is for jdist's own work, for which a cell that opens too many files would leave none.
"""

import contextlib
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import FrameSummary
from typing import Any

_KEPT = ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__file__", "__cached__")

_RUNPY = runpy.run_path.__code__.co_filename
_rank: int | None = None  # None in a process that is no rank.
_is_running = False
_of_job = False  # A script runs for which the cluster was started, and with which it ends.


def be_rank(rank: int) -> None:
    """Declare this process a worker, the one with this rank."""
    global _rank  # noqa: PLW0603 - a process is a rank or not
    _rank = rank


def rank() -> int | None:
    """The rank that this process is; None in another process."""
    return _rank


class ScriptExit(RuntimeError):
    """The script has called ``sys.exit`` with something that is not success. ``code`` is its exit code."""

    def __init__(self, name: str, code: object):
        super().__init__(f"{name} exited with {code}")
        # As the interpreter does it: a number's lowest byte; any other object is a message, and the code is 1.
        self.code = code & 0xFF if isinstance(code, int) else 1

    def _render_traceback_(self) -> list[str]:
        """What IPython shows as the traceback: nothing, since the message says it all."""
        return []


def script_frames(frames: list[FrameSummary]) -> list[FrameSummary] | None:
    """The frames of a traceback within the script; None if it is that of no script."""
    run_here = [place for place, frame in enumerate(frames) if frame.filename == __file__]
    if not run_here:
        return None
    return [frame for frame in frames[run_here[-1] + 1 :] if frame.filename != _RUNPY]


def is_script_running() -> bool:
    """Whether a script is running, with its module as ``__main__``."""
    return _is_running


def is_job_script() -> bool:
    """Whether a job's script is running, after which no cell follows."""
    return _of_job


def _has_no_copies(_file: str) -> str:
    return ""


copy_of: Callable[[str], str] = _has_no_copies
"""Where this node has a client's file, "" if nowhere (see :mod:`jdist.worker.cells.imports`)."""


def run_script(
    name: str, args: list[str], namespace: dict[str, Any], directory: str = "", *, in_job: bool = False
) -> None:
    """Run a script with ``sys.argv`` set; its names are bound in the session then. ``sys.exit(0)`` is no error.

    With a ``directory``, ``name`` is a module's, which is run as ``python -m`` runs it there.
    """
    global _is_running, _of_job  # noqa: PLW0603 - one script runs at a time
    __tracebackhide__ = True
    if not directory and not Path(name).is_file():
        missing, name = name, copy_of(name)
        if not name:
            raise FileNotFoundError(f"{missing} is not on this node; a script must be on every node")
    argv, search = sys.argv, sys.path[:]
    main = sys.modules["__main__"]
    _is_running, _of_job = True, in_job
    sys.argv = [name, *args]
    sys.path.insert(0, directory or str(Path(name).parent))
    try:
        if directory:
            found = runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            found = runpy.run_path(name, run_name="__main__")
    except SystemExit as e:
        if e.code not in (None, 0):
            raise ScriptExit(name, e.code) from None
        return
    except BaseException as e:
        part = e.__traceback__  # Leave out the frames that run the script, unless it could not be compiled.
        while part is not None and part.tb_frame.f_globals.get("__name__") != "__main__":
            part = part.tb_next
        raise e.with_traceback(part or e.__traceback__)  # noqa: B904
    finally:
        sys.argv, sys.path[:] = argv, search
        sys.modules["__main__"] = main
        _is_running = _of_job = False
    namespace.update({k: v for k, v in found.items() if k not in _KEPT})


_RESERVED = 16


class DescriptorReserve:
    """Holds some file descriptors, and gives them up while something of jdist's runs and no other is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._borrowers = 0
        self._first = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._held: list[int] = []
        self._fill()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """In this context, which may be entered by several threads at once, files can be opened."""
        with self._lock:
            self._borrowers += 1
            if not self._is_any_left():
                while self._held:
                    os.close(self._held.pop())
        try:
            yield
        finally:
            with self._lock:
                self._borrowers -= 1
                if not self._borrowers:
                    self._fill()

    def give_up(self) -> None:
        """Give all of it up, as the process ends. Takes no lock, because a thread that was stopped may hold it."""
        while self._held:
            os.close(self._held.pop())

    def _is_any_left(self) -> bool:
        try:
            os.close(os.dup(self._first))
        except OSError:
            return False
        return True

    def _fill(self) -> None:
        with contextlib.suppress(OSError):  # there are none to hold
            while len(self._held) < _RESERVED:
                self._held.append(os.dup(self._first))
