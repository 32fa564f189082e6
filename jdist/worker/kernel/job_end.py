"""The signals by which schedulers announce the end of a job: a rank that is to be saved before it outlives them.

Slurm sends SIGTERM to every process of a job that ends, and SIGUSR1 if a user asked for that (``--signal``). They are
caught in C by a function that does nothing, so that Python, and libraries that look for handlers, find none. A handler
of the user's own stays. Programs that the rank starts, and forked children, get the default back.
"""

import ctypes
import os
import signal
import threading

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
