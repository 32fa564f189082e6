"""Stored transfers: bytes that arrive at the data port's host once and are sent several times, from a segment.

A PUT fills the segment; GETs follow it without waiting for its end.
"""

import asyncio
import contextlib
import socket
import threading
from pathlib import Path
from typing import Self

from jdist.core.errors import ConnectionLost, ProtocolError
from jdist.wire.transport.dialing import receive_segment
from jdist.wire.values.segments import Segment


class StoredTransfer:
    """``nbytes`` bytes of a cluster: expected, arriving, or complete. Waits end after ``stall`` seconds."""

    def __init__(self, cluster: str, nbytes: int, stall: float):
        self._cluster = cluster
        self._nbytes = nbytes
        self._stall = stall
        self._path = ""
        self._is_own = True
        self._is_taken = False
        self._is_over = False
        self._arrived = 0
        self._ends: set[socket.socket] = set()
        self._begun = asyncio.Event()
        # Guards the path, the count of bytes and whether it is over, between the threads that move the bytes.
        self._changed = threading.Condition()

    @classmethod
    def of(cls, cluster: str, nbytes: int, stall: float, path: str) -> Self:
        """Bytes that are complete already, in a segment that stays another process's."""
        transfer = cls(cluster, nbytes, stall)
        transfer._path, transfer._is_own, transfer._is_taken, transfer._arrived = path, False, True, nbytes
        transfer._begun.set()
        return transfer

    async def put(self, sock: socket.socket) -> None:
        """Serve the PUT and confirm it. Raises OSError or a JdistError when bytes do not arrive; GETs end, too."""
        if self._is_taken:
            raise ProtocolError("a second PUT of one transfer")
        self._is_taken = True
        self._ends.add(sock)
        sock.settimeout(self._stall)
        try:
            await asyncio.to_thread(self._fill, sock, asyncio.get_running_loop())
            sock.send(b"k")
        except BaseException:
            self.cut()
            raise
        finally:
            self._ends.discard(sock)

    async def get(self, sock: socket.socket) -> None:
        """Serve a GET. Raises TimeoutError, OSError or a JdistError when bytes do not arrive, or are not read."""
        self._ends.add(sock)
        sock.settimeout(self._stall)
        try:
            async with asyncio.timeout(self._stall):
                await self._begun.wait()  # not in a thread: there are few, and the PUT needs one
            await asyncio.to_thread(self._follow, sock)
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
