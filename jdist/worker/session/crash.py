"""The crash handler: before a signal ends the process, it hands its names over to its successor.

gloo ends a process by ``std::terminate`` in its own thread when a peer sends more than expected, and C code of the
user's may fault. A handler of these signals runs in the thread that fails. While the main thread waits in a collective,
the interpreter is free, so Python can run there; and if the main thread itself failed in C code, Python can run in its
place. The work is done on a thread of its own, as the failing one may have little stack left. Then the process ends by
the same signal. A fault on the thread that saves ends it at once, while one that only pickles is left alone (see
`attempt`). The agent ends a process that gets stuck.

Installed below faulthandler's handlers, which need no interpreter: what they write tells the agent of a failure in
which Python cannot run any more.

Python counts a signal as having its default action if C code installed its handler. Code that saves all handlers and
restores them later, such as Lightning's Trainer, would therefore remove these handlers without knowing it, and others
such as that of stack dumps. So in ``signal.signal`` the default of a signal is the handler that C code installed.
"""

import _thread
import contextlib
import ctypes
import faulthandler
import functools
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)

_ON_STACK = 0x08000000  # SA_ONSTACK
_STACK = 8 << 20  # Bytes of the stack on which the handler runs where the main thread's own has overflowed.
# Python 3.14 takes any other stack than the thread's own for an overflow.
_HAS_OWN_STACK = sys.version_info < (3, 14)
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


class _Stack(ctypes.Structure):
    """``stack_t``."""

    _fields_ = (("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class CrashHandler:
    """This process's handler. ``hand_over(signal)`` is called once, on a thread of its own; what it raises is ignored.

    The signal is 0 where there is none, but :meth:`end` was called.

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
        self._own = _HandlerEntry(
            ctypes.cast(self._callback, ctypes.c_void_p), flags=_ON_STACK if _HAS_OWN_STACK else 0
        )
        self._defaults: dict[int, _HandlerEntry] = {}  # By signal, what was there when Python set a handler instead.
        self._stack = mmap.mmap(-1, _STACK)
        self._line = line
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def install(self) -> None:
        """Handle the signals from now on; on the main thread."""
        for number in SIGNALS:
            self._libc.sigaction(int(number), ctypes.byref(self._own), None)
        self._line.setblocking(False)  # faulthandler's text is left out rather than waited for
        faulthandler.enable(self._line.fileno())
        signal.signal = self._keeping(signal.signal)
        stack = _Stack(ctypes.addressof(ctypes.c_char.from_buffer(self._stack)), 0, _STACK)
        self._libc.sigaltstack(ctypes.byref(stack), None)  # after faulthandler's own, which is too small for Python
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
                is_faults = signalnum in SIGNALS and not faulthandler.is_enabled()  # its handlers would do nothing
                kept = self._own if is_faults else self._defaults[signalnum]
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
            return  # a fault in what is done about the first
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
