"""Capture of what is written to file descriptors 1 and 2 below Python: os.system, C++ libraries, subprocesses.

ipykernel has a capture of its own, but no way to see when it has caught up: a child's last line could appear after the
cell's end. Here :meth:`FdCapture.drain` returns only when everything written before it was called has been passed on.
"""

import array
import codecs
import fcntl
import os
import select
import termios
import threading
from collections.abc import Callable
from typing import Any

_CHUNK = 65536


class FdCapture:
    """Replaces one file descriptor by a pipe and passes on what arrives there, from a thread of its own."""

    def __init__(self, fd: int, write: Callable[[str], object]):
        self._write = write
        self._read_end, write_end = os.pipe()
        self._wake_read, self._wake_write = os.pipe()
        os.dup2(write_end, fd)
        os.close(write_end)
        os.set_blocking(self._read_end, False)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pid = os.getpid()  # a forked child, such as a data loader's, has the pipe but no thread that reads it
        self._is_busy = False
        self._drained = threading.Event()
        self._draining = threading.Lock()
        threading.Thread(target=self._pump, name=f"jdist-fd{fd}", daemon=True).start()

    def catch_up(self) -> None:
        """Pass on what the pipe holds, if anything: called before Python writes to the same stream."""
        # In this order: the pump is busy before it takes bytes out of the pipe.
        if os.getpid() == self._pid and (_unread(self._read_end) or self._is_busy):
            self.drain()

    def drain(self, timeout: float = 1.0) -> bool:
        """Wait until all that was written before this call has been passed on; False after ``timeout`` seconds."""
        with self._draining:
            self._drained.clear()
            os.write(self._wake_write, b"x")
            return self._drained.wait(timeout)

    def _pump(self) -> None:
        while True:
            ready, _, _ = select.select([self._read_end, self._wake_read], [], [])
            self._is_busy = True
            while chunk := self._read():
                self._write(self._decoder.decode(chunk))
            self._is_busy = False
            if self._wake_read in ready:
                os.read(self._wake_read, _CHUNK)
                self._drained.set()

    def _read(self) -> bytes:
        try:
            return os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return b""


def _unread(fd: int) -> int:
    """Bytes waiting in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def capture_stream(fd: int, stream: Any) -> FdCapture:
    """Capture ``fd`` into ``stream`` (sys.stdout or sys.stderr), in the order in which the process wrote to either."""
    write = stream.write
    capture = FdCapture(fd, write)

    def write_in_order(text: str) -> Any:
        capture.catch_up()
        return write(text)

    stream.write = write_in_order
    return capture
