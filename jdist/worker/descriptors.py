"""Descriptors: a reserve for jdist's own work, for which a cell that opens too many files would leave none."""

import contextlib
import os
import threading
from collections.abc import Iterator

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
