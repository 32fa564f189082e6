"""Hand the names over to the process's successor before SIGABRT ends the process.

Libraries call ``abort()`` in a state that they found to be wrong: gloo by ``std::terminate`` in its own thread when a
peer sends more than expected, NCCL and CUDA likewise. The handler of SIGABRT runs in the thread that aborts. While the
main thread waits in a collective, the interpreter is free, so Python can run there; and if the main thread itself
aborted in C code, Python can run in its place. Saving has a thread of its own, since the aborting one may have little
stack left. Then the process ends by the same signal. The agent kills a process that gets stuck.

A fault (SIGSEGV, SIGBUS, SIGFPE) is left alone and ends the process: the memory that would be saved may be damaged.

The handler is installed below faulthandler's handlers, which need no interpreter: their text reports faults to the
agent, and aborts after which Python cannot run. They show the stack of the failing thread only, whoever enables
faulthandler: the other threads go on running, so reading their stacks can end the process by a fault, and its names
would be lost.

Python counts a signal as having its default action if C code installed its handler. Code that saves all handlers and
restores them later, such as Lightning's Trainer, would therefore remove this handler without knowing it, and others
such as that of stack dumps. So in ``signal.signal`` the default of a signal is the handler that C code installed.
"""

import _thread
import contextlib
import ctypes
import faulthandler
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

# Signals by which C code ends the process, all of which faulthandler reports.
FATAL = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)

_SAVING_STACK = 256 << 20  # Of the thread that saves: pickling nested objects takes stack.
_SOON = 0.05


class _HandlerEntry(ctypes.Structure):
    """``struct sigaction`` of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class CrashHandler:
    """This process's handler of SIGABRT.

    ``hand_over(signal)`` is called once, on a thread of its own, and its errors are ignored. The signal is 0 if
    :meth:`end` was called.

    ``line`` is a socket to the agent, to which faulthandler writes where the process failed. Made on the main thread.
    """

    def __init__(self, hand_over: Callable[[int], None], line: socket.socket):
        self._hand_over = hand_over
        self._pid = os.getpid()
        self._failing: set[int] = set()  # The thread that has failed, and the one that hands over.
        self._turn = _thread.allocate_lock()
        self._done = _thread.allocate_lock()
        self._libc: Any = ctypes.CDLL(None)
        self._libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self._libc.signal.restype = ctypes.c_void_p
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._handle)  # kept for the process's life
        self._own = _HandlerEntry(ctypes.cast(self._callback, ctypes.c_void_p))
        self._defaults: dict[int, _HandlerEntry] = {}  # By signal, what was there when Python set a handler instead.
        self._line = line
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def install(self) -> None:
        """Handle SIGABRT from now on; on the main thread."""
        self._libc.sigaction(int(signal.SIGABRT), ctypes.byref(self._own), None)
        self._line.setblocking(False)  # faulthandler's text is left out rather than waited for
        faulthandler.enable = _for_failing_thread(faulthandler.enable)
        faulthandler.enable(self._line.fileno())
        signal.signal = self._keeping(signal.signal)
        # A child that fails is none of the agent's business.
        os.register_at_fork(after_in_child=lambda: os.dup2(self._nowhere, self._line.fileno(), inheritable=False))

    def end(self) -> NoReturn:
        """Hand over without a signal, and end the process; on a thread that is not the main one."""
        self._fail(0)
        os._exit(1)

    def _keeping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``signal.signal`` so that the default of a signal is what C code installed."""

        @functools.wraps(original)
        def set_handler(signalnum: Any, handler: Any) -> Any:
            entry = _HandlerEntry()
            is_read = self._libc.sigaction(int(signalnum), None, ctypes.byref(entry)) == 0
            before = original(signalnum, handler)
            if is_read and before == signal.SIG_DFL:
                self._defaults[signalnum] = entry
            if handler == signal.SIG_DFL and signalnum in self._defaults and os.getpid() == self._pid:
                kept = self._defaults[signalnum]
                if signalnum in FATAL and not faulthandler.is_enabled():  # its handler would return at once
                    kept = self._own if signalnum == signal.SIGABRT else _HandlerEntry()
                self._libc.sigaction(int(signalnum), ctypes.byref(kept), None)
            return before

        return set_handler

    def _handle(self, number: int) -> None:
        """The handler: in the thread that failed, with whatever is on its stack."""
        try:
            if os.getpid() == self._pid:
                self._fail(number)
        finally:
            self._libc.signal(number, None)  # the default
            getattr(self._libc, "raise")(number)  # it is blocked here, and taken once the handler returns

    def _fail(self, number: int) -> None:
        own = _thread.get_ident()
        if own in self._failing:
            return  # it aborts once more while it handles the first time
        if not self._turn.acquire(blocking=False):
            while True:  # another thread has failed, too: the process ends when the first is done
                time.sleep(1.0)
        self._libc.signal(int(signal.SIGINT), 1)  # ignored: an interrupt would raise in this very place
        self._failing.add(own)
        self._done.acquire()
        _thread.stack_size(_SAVING_STACK)
        _thread.start_new_thread(self._run, (number,))
        while not self._done.acquire(timeout=1.0):
            pass

    def _run(self, number: int) -> None:
        self._failing.add(_thread.get_ident())
        sys.setswitchinterval(_SOON)
        self._line.setblocking(True)
        with contextlib.suppress(BaseException):
            self._hand_over(number)
        self._done.release()


def _for_failing_thread(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``faulthandler.enable`` so that the stacks of other threads are not read."""

    @functools.wraps(original)
    def enable(*arguments: Any, **options: Any) -> None:
        original(*arguments[:1], **{**options, "all_threads": False})

    return enable


def connect(path: str, identity: str) -> socket.socket:
    """A connection to the agent's socket for names. Raises OSError."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(path)
        line.send(identity.encode())
    except OSError:
        line.close()
        raise
    return line
