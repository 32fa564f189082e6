"""The rank's stdout and stderr, and what is written to their descriptors below Python.

os.system, C++ libraries and subprocesses write to file descriptors 1 and 2. ipykernel's own capture cannot tell when it
has caught up, so a child's last line could appear after the cell's end. It buffers stdout and stderr apart, so what is
written to one of them could overtake what was written to the other before.

The kernel uses only the rank's own stdout and stderr, which are restored when a cell leaves something unusable in
``sys.stdout``: None, a closed or failing stream, or one in memory. A replacement that works, such as one that also
writes to a file, is kept for the next cells.
"""

import array
import codecs
import contextlib
import fcntl
import io
import os
import select
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jdist.worker.cells.user_code import described, guarded

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


class OwnStreams:
    """One rank's streams, as they are when this is made. All methods are called on the main thread."""

    def __init__(self, captures: Sequence[FdCapture] = ()):
        self._own: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._captures = captures
        # A cell's ``sys.stdout.close()`` would close it for all cells to come.
        self._methods = [(s, {"write": s.write, "flush": s.flush, "close": s.flush}) for s in self._own.values()]

    def restore(self, has_failed: bool = False) -> None:
        """Flush the output, and make sure that the next cell finds streams that work. Never raises."""
        notes = []
        for stream, methods in self._methods:
            vars(stream).update(methods)  # also where a cell has put its own in their place
        for name, own in self._own.items():
            fault, failure = guarded(lambda name=name: self._fault_of(name, has_failed))  # type: ignore[misc]
            if failure is not None:
                fault = f"was left as something that cannot be looked at ({described(failure)})"
            if fault is None:
                continue
            setattr(sys, name, own)
            if fault:
                notes.append(f"sys.{name} {fault}; it was reset")
        for capture in self._captures:
            if capture.restore():
                notes.append(f"file descriptor {capture.fd} was closed; it is open again")
            capture.catch_up()
        for note in notes:
            self._own["stderr"].write(f"jdist: {note}\n")
        for own in self._own.values():
            own.flush()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Use the rank's own streams in a block, in the middle of a cell that may have put others in their place."""
        replaced = {name: getattr(sys, name, None) for name in self._own}
        for stream in replaced.values():
            guarded(lambda stream=stream: stream.flush())  # type: ignore[misc]
        for name, own in self._own.items():
            setattr(sys, name, own)
        self.restore()
        try:
            yield
        finally:
            for name, stream in replaced.items():
                setattr(sys, name, stream)

    def catch_up(self) -> None:
        """Pass on what children have written so far: it belongs to the cell whose number output bears now."""
        for capture in self._captures:
            capture.catch_up()

    def after_fork(self) -> None:
        """In a forked child: write to file descriptors 1 and 2, which the rank reads, instead of sending messages."""
        for capture in self._captures:
            capture.after_fork()

    def _fault_of(self, name: str, has_failed: bool) -> str | None:
        """Why the current stream must be replaced ("" if the user need not know), or None if it may stay."""
        stream: Any = getattr(sys, name, None)
        if stream is self._own[name]:
            return None
        if stream is None:
            return "was left as None"
        if stream is getattr(sys, f"__{name}__"):
            guarded(lambda: _use(stream, has_failed=False))
            return ""  # it leads to the same place by a longer way
        kind = type(stream).__name__
        if isinstance(stream, io.StringIO | io.BytesIO):
            return f"was left as a {kind}, which shows nothing"
        _, failure = guarded(lambda: _use(stream, has_failed))
        return f"was left as a {kind} that cannot be used ({described(failure)})" if failure is not None else None


def _use(stream: Any, has_failed: bool) -> None:
    """What IPython does with a stream, and, as this may have been why the cell failed, a write."""
    if getattr(stream, "closed", False):
        raise ValueError("it is closed")
    stream.write = stream.write  # IPython puts its own in its place while a cell runs
    if has_failed:
        stream.write("")
    if hasattr(stream, "flush"):
        stream.flush()
