"""Stored transfers: one PUT fills a segment on the data port's host; GETs follow it without waiting for its end."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from jdist.core.errors import ConnectionLost, ProtocolError
from jdist.wire.transport.dialing import receive_segment
from jdist.wire.values.segments import Segment


class StoredTransfer:
    """``nbytes`` bytes of a cluster: expected, arriving, or complete. Waits end after ``stall`` seconds."""

    def __init__(self, cluster: str, nbytes: int, stall: float, path: str = ""):
        """``path``: a segment that stays another process's, in which the bytes are complete already."""
        self._cluster = cluster
        self._nbytes = nbytes
        self._stall = stall
        self._path = path
        self._is_own = not path
        self._is_taken = bool(path)
        self._is_over = False
        self._arrived = nbytes if path else 0
        self._ends: set[socket.socket] = set()
        self._begun = asyncio.Event()
        if path:
            self._begun.set()
        self._changed = threading.Condition()  # Guards path, byte count and end between the threads that move bytes.

    async def put(self, sock: socket.socket) -> None:
        """Serve the PUT and confirm it. Raises OSError or a JdistError when bytes do not arrive; GETs end, too."""
        if self._is_taken:
            raise ProtocolError("a second PUT of one transfer")
        self._is_taken = True
        with self._as_end(sock):
            try:
                await asyncio.to_thread(self._fill, sock, asyncio.get_running_loop())
                sock.send(b"k")
            except BaseException:
                self.cut()
                raise

    async def get(self, sock: socket.socket) -> None:
        """Serve a GET. Raises TimeoutError, OSError or a JdistError when bytes do not arrive, or are not read."""
        with self._as_end(sock):
            async with asyncio.timeout(self._stall):
                await self._begun.wait()  # not in a thread: there are few, and the PUT needs one
            await asyncio.to_thread(self._follow, sock)

    @contextlib.contextmanager
    def _as_end(self, sock: socket.socket) -> Iterator[None]:
        self._ends.add(sock)
        sock.settimeout(self._stall)
        try:
            yield
        finally:
            self._ends.discard(sock)

    def cut(self) -> None:
        """End the transfer: its segment is removed if it was made here, and unfinished peers are disconnected."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._begun.set()
        for sock in self._ends:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that uses it
        if self._path and self._is_own:
            Path(self._path).unlink(missing_ok=True)

    def _fill(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        segment = Segment.create(self._cluster, self._nbytes)
        try:
            self._path = segment.path
            loop.call_soon_threadsafe(self._begun.set)
            for arrived in receive_segment(sock, segment):
                self._record(arrived)
            self._record(segment.nbytes)
        except BaseException:
            segment.unlink()
            raise
        finally:
            segment.close()

    def _record(self, arrived: int) -> None:
        with self._changed:
            if self._is_over:
                raise ConnectionLost("the transfer was cancelled")
            self._arrived = arrived
            self._changed.notify_all()

    def _follow(self, sock: socket.socket) -> None:
        with open(self._path, "rb") as file:
            sent = 0
            while sent < self._nbytes:
                sent += sock.sendfile(file, sent, self._wait_beyond(sent) - sent)

    def _wait_beyond(self, sent: int) -> int:
        """The number of bytes that have arrived, once it is more than ``sent``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_over or self._arrived > sent, self._stall):
                raise TimeoutError(f"not a byte for {self._stall:g} s")
            if self._is_over:
                raise ConnectionLost("the transfer was cancelled")
            return self._arrived
