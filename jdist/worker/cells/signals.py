"""Signals of a rank: SIGINT, and those by which a scheduler announces the end of a job.

SIGINT only ever stops user code: in the kernel's own code, a KeyboardInterrupt would lose a reply. The handler inspects
the stack that it interrupts. It raises only where the shell executes a cell, cancels a cell that awaits, and otherwise
does nothing; the sender repeats the signal where :mod:`jdist.worker.escalation` finds it needed. For that the handler
remembers what it has raised: as long as anything refers to the exception, it is on its way through the cell's code, or
the cell handles it.

A rank that is to be saved before its job ends outlives the scheduler's signals. Slurm sends SIGTERM to every process of
a job that ends, and SIGUSR1 if a user asked for that (``--signal``). They are caught in C by a function that does
nothing, so that Python, and libraries that look for handlers, find none. A handler of the user's own stays. Programs
that the rank starts, and forked children, get the default back.
"""

import asyncio
import contextlib
import ctypes
import inspect
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from IPython.core.interactiveshell import InteractiveShell

from jdist.worker.cells import user_code
from jdist.worker.compat.ipykernel import replace_cancel_on_sigint

_OWN = 2  # References to an exception that only the handler holds: its attribute, and sys.getrefcount's argument.


class Moment(NamedTuple):
    """A moment by two clocks: the wall clock's nanoseconds, and seconds."""

    wall: int
    monotonic: float


class SafeSigint:
    """The handler, bound to one kernel."""

    def __init__(self, kernel: Any):
        self._shell = kernel.shell
        # Both catch whatever user code below them raises, KeyboardInterrupt included.
        self._roots: set[CodeType] = {InteractiveShell.run_code.__code__, InteractiveShell.user_expressions.__code__}
        self.held: set[CodeType] = set()  # Functions in which nothing is interrupted but cells that they run.
        self._cancelled = False
        self.raised_at: Moment | None = None  # When the cell was interrupted last; None: not since `forget`.
        self.is_insistent = False  # Whether code that swallows the interrupt is interrupted again at once.
        self.on_raise: Callable[[], None] = lambda: None  # Called before an interrupt is raised in the cell.
        self._raised: KeyboardInterrupt | None = None
        self._awaited: asyncio.Future[Any] | None = None

    def __call__(self, _signum: int, frame: FrameType | None) -> None:
        if frame is not None and self.is_user_code(frame):
            self.interrupt(frame)

    def interrupt(self, frame: FrameType) -> None:
        """Raise KeyboardInterrupt, to end the code of ``frame``, which runs in this thread."""
        self._note()
        self.on_raise()
        self._raised = KeyboardInterrupt()
        if self.is_insistent:
            self._raise_when_swallowed(frame)
        raise self._raised

    def _note(self) -> None:
        self.raised_at = Moment(time.time_ns(), time.monotonic())

    def _raise_when_swallowed(self, frame: FrameType | None) -> None:
        """Raise again at the first line of any of these frames that runs after the interrupt was swallowed.

        A loop that swallows everything would else end only when a signal comes between two rounds. Handlers are left to
        finish, since most of those in libraries raise it again.
        """

        def trace(traced: FrameType, event: str, _: Any) -> Any:
            if event == "line" and sys.exception() is not self._raised:
                sys.settrace(None)
                self._note()
                self._raised = KeyboardInterrupt()
                raise self._raised
            if event == "call":
                if not self.is_user_code(traced):
                    sys.settrace(None)  # no handler has caught it
                return None
            return trace

        while frame is not None and frame.f_code not in self._roots:
            frame.f_trace = trace
            frame = frame.f_back
        sys.settrace(trace)

    @property
    def is_handled(self) -> bool:
        """Whether the interrupt raised last is on its way, or the cell handles it, in ``except`` or ``finally``."""
        if self._awaited is not None:
            return not self._awaited.done()
        if self._raised is None or sys.getrefcount(self._raised) > _OWN:
            return self._raised is not None
        self._raised = None
        return False

    def forget(self, before: float = math.inf) -> None:
        """Forget the last interrupt if it was raised ``before`` that moment (time.monotonic): another one begins."""
        self.is_insistent = False
        if self.raised_at is None or self.raised_at.monotonic < before:
            self.raised_at = self._raised = self._awaited = None

    def catch_ignored(self) -> None:
        """Take notice of interrupts that Python ignores, because they were raised in a destructor or a callback."""
        show = sys.unraisablehook

        def hook(unraisable: Any) -> None:
            if self._raised is not None and unraisable.exc_value is self._raised:
                self.raised_at = self._raised = None
            else:
                show(unraisable)

        sys.unraisablehook = hook

    def is_user_code(self, frame: FrameType | None) -> bool:
        """Whether the stack has a frame of the user's namespace below a function of the shell that runs cells, or any
        frame in a guarded call.
        """
        namespace = self._shell.user_global_ns
        seen_user, top = False, frame
        while frame is not None:
            if frame.f_code is user_code.CODE and frame is not top:
                return True
            if frame.f_code in self.held:
                return False
            seen_user = seen_user or frame.f_globals is namespace or frame.f_globals is self._shell.user_ns
            if seen_user and frame.f_code in self._roots:
                return True
            frame = frame.f_back
        return False

    def is_held(self, frame: FrameType | None) -> bool:
        """Whether a function in which nothing is interrupted has called the frame."""
        while frame is not None and frame.f_code not in self._roots:
            if frame.f_code in self.held:
                return True
            frame = frame.f_back
        return False

    def arm(self) -> None:
        """Make this the process's handler; on the main thread only."""
        signal.signal(signal.SIGINT, self)

    @contextlib.contextmanager
    def cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """On every SIGINT, cancel a cell that awaits or interrupt one that computes; ipykernel's own cancels once."""
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            if not future.done():
                self._cancelled = True
                self._awaited = future
                self._note()
                future.cancel()

        def handle(_signum: int, frame: FrameType | None) -> None:
            if frame is not None and self.is_user_code(frame):
                self.interrupt(frame)
            if not self.is_held(frame):
                loop.call_soon_threadsafe(cancel)

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            self.arm()

    def keep_reply(self, do_execute: Any) -> Any:
        """Wrap ``do_execute`` so that it replies even when its cell was cancelled before it had begun."""

        async def kept(*args: Any, **kwargs: Any) -> dict[str, Any]:
            self._cancelled = False
            try:
                reply: dict[str, Any] = await do_execute(*args, **kwargs)
            except asyncio.CancelledError:
                if not self._cancelled:  # the kernel itself is being ended
                    raise
                return {
                    "status": "error",
                    "ename": "KeyboardInterrupt",
                    "evalue": "",
                    "traceback": ["KeyboardInterrupt"],
                    "execution_count": self._shell.execution_count,
                    "user_expressions": {},
                    "payload": [],
                }
            return reply

        # ipykernel looks at the signature to see which arguments it may pass.
        kept.__signature__ = inspect.signature(do_execute)  # type: ignore[attr-defined]
        return kept


def install(kernel: Any) -> SafeSigint:
    """Give the kernel the safe handler; on the main thread. ``kernel`` is an ipykernel ``IPythonKernel``."""
    handler = SafeSigint(kernel)
    kernel.pre_handler_hook = handler.arm
    kernel.post_handler_hook = handler.arm
    replace_cancel_on_sigint(kernel, handler.cancel_on_sigint)
    kernel.do_execute = handler.keep_reply(kernel.do_execute)
    handler.arm()
    return handler


def interrupt_main() -> None:
    """Send SIGINT to the main thread."""
    ident = threading.main_thread().ident
    if ident is not None:
        signal.pthread_kill(ident, signal.SIGINT)


_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_DEFAULT = 0  # SIG_DFL.

_caught: set[signal.Signals] = set()


def outlive(*, wanted: bool) -> None:
    """From now on, do not end by these signals, or do so again; from any thread."""
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    does_nothing = ctypes.cast(libc.abs, ctypes.c_void_p)
    for number in _SIGNALS:
        if wanted and signal.getsignal(number) == signal.SIG_DFL:
            libc.signal(number, does_nothing)
            _caught.add(number)
        elif not wanted and number in _caught:
            _caught.discard(number)
            if signal.getsignal(number) == signal.SIG_DFL:
                libc.signal(number, _DEFAULT)


class _Fork(threading.local):
    """A thread that forks: the signals that it blocks only for that."""

    blocked: frozenset[signal.Signals] = frozenset()


_fork = _Fork()


def _before_fork() -> None:
    """A child must not take a signal before it has the default back."""
    if _caught:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        _fork.blocked = frozenset(_SIGNALS) - before


def _after_fork() -> None:
    if _fork.blocked:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _fork.blocked)
        _fork.blocked = frozenset()


def _after_fork_in_child() -> None:
    outlive(wanted=False)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
