"""Capture of what is written to file descriptors 1 and 2 below Python: os.system, C++ libraries, subprocesses.

ipykernel's own capture cannot tell when it has caught up, so a child's last line could appear after the cell's end. It
buffers stdout and stderr apart, so what is written to one of them could overtake what was written to the other before.
"""

import array
import codecs
import contextlib
import fcntl
import os
import select
import sys
import termios
import threading
import time
from collections.abc import Sequence
from typing import Any

_CHUNK = 65536  # Bytes; a pipe holds no more.
_FASTEST = 16 << 20  # Bytes a second that are passed on. More from several ranks would keep their agent from answering.
_LONGEST = 1.0  # Seconds that is waited for the pump.


class FdCapture:
    """Replaces a file descriptor by a pipe; a thread passes what arrives there to ``stream``, in the order written."""

    def __init__(self, fd: int, stream: Any):
        self.fd = fd
        self._stream, self._write, self._flush = stream, stream.write, stream.flush
        self._read_end, self._write_end = os.pipe()  # this write end stays open: the pipe has no end while cells run
        self._wake_read, self._wake_write = os.pipe()
        os.dup2(self._write_end, fd)
        os.set_blocking(self._read_end, False)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_busy = False
        self._drained = threading.Event()
        self._draining = threading.Lock()
        self._others: Sequence[FdCapture] = ()
        threading.Thread(target=self._pump, name=f"jdist-fd{fd}", daemon=True).start()
        stream.write, stream.flush = self._write_in_order, self._flush_in_order

    def keep_order_with(self, others: "Sequence[FdCapture]") -> None:
        """Have what is written to others' streams before sent before what is written to this one.

        ``flush`` of the streams returns when all has been sent, and at once when nothing is held.
        """
        self._others = others

    def flush(self) -> None:
        """Send what the stream holds."""
        self._flush()

    def _write_in_order(self, text: str) -> Any:
        self.catch_up()
        if text == "\n":  # the second of the two writes that `print` makes: the first has waited for the others
            return self._write(text)
        for other in self._others:
            other.catch_up()
        return self._write_after_others(text)

    def _write_after_others(self, text: str) -> Any:
        for other in self._others:
            other.flush()
        return self._write(text)

    def _flush_in_order(self) -> None:
        self.catch_up()
        self._flush()

    def restore(self) -> bool:
        """Open the file descriptor again if a cell has closed it; returns whether it had. A redirected one stays."""
        try:
            os.fstat(self.fd)
        except OSError:
            os.dup2(self._write_end, self.fd)
            return True
        return False

    def catch_up(self) -> None:
        """Pass on what the pipe holds, if anything: called before Python writes to a stream or displays."""
        unread = array.array("i", [0])
        fcntl.ioctl(self._read_end, termios.FIONREAD, unread)
        if unread[0] or self._is_busy:  # in this order: the pump is busy before it takes bytes out of the pipe
            with self._draining:
                self._drained.clear()
                os.write(self._wake_write, b"x")
                self._drained.wait(_LONGEST)

    def after_fork(self) -> None:
        """In a forked child, which has no thread to send output: write into the pipe, line by line."""
        with contextlib.suppress(OSError):  # the user has closed the descriptor
            text = open(self.fd, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
            for name in ("stdout", "stderr"):
                if getattr(sys, name) is self._stream:
                    setattr(sys, name, text)
            self._stream.write, self._stream.flush = text.write, text.flush  # for who holds it, such as loggers

    def _pump(self) -> None:
        self._write("")  # The stream's socket for this thread is opened now: later, no descriptor may be left for it.
        unsent = 0
        while True:
            ready, _, _ = select.select([self._read_end, self._wake_read], [], [])
            self._is_busy = True
            with contextlib.suppress(BlockingIOError):  # it is empty
                chunk = os.read(self._read_end, _CHUNK)  # all that was there when catch_up asked, not what comes then
                self._write_after_others(self._decoder.decode(chunk))
                unsent += len(chunk)
            if unsent >= _CHUNK:  # meanwhile the pipe fills up, which blocks a process that writes faster than this
                self._flush()
                time.sleep(unsent / _FASTEST)
                unsent = 0
            self._is_busy = False
            if self._wake_read in ready:
                os.read(self._wake_read, _CHUNK)
                self._drained.set()
