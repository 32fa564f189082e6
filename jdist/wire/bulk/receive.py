"""StoredTransfer: bytes that come to the data port's host once and leave it several times, by way of a segment.

A PUT fills the segment; GETs follow it, without waiting for its end.
"""

from __future__ import annotations

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
    """``nbytes`` bytes of a cluster: expected, coming, or there. Who waits for more of them waits ``stall`` seconds."""

    def __init__(self, cluster: str, nbytes: int, stall: float):
        self._cluster = cluster
        self._nbytes = nbytes
        self._stall = stall
        self._path = ""
        self._is_own = True
        self._is_taken = False
        self._is_over = False
        self._landed = 0
        self._ends: set[socket.socket] = set()
        self._begun = asyncio.Event()
        self._news = threading.Condition()
        """Guards the path, the count of bytes and whether it is over, between the threads that move the bytes."""

    @classmethod
    def of(cls, cluster: str, nbytes: int, stall: float, path: str) -> Self:
        """Bytes that are there already, in a segment that is and stays somebody else's."""
        landing = cls(cluster, nbytes, stall)
        landing._path, landing._is_own, landing._is_taken, landing._landed = path, False, True, nbytes
        landing._begun.set()
        return landing

    async def receive(self, sock: socket.socket) -> None:
        """Serve the PUT and confirm it. Raises OSError or a JdistError when the bytes do not come; GETs end, too."""
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

    async def send(self, sock: socket.socket) -> None:
        """Serve a GET. Raises TimeoutError, OSError or a JdistError when no bytes come, or nobody reads them."""
        self._ends.add(sock)
        sock.settimeout(self._stall)
        try:
            async with asyncio.timeout(self._stall):
                await self._begun.wait()  # here, not in a thread: there are few, and the PUT needs one
            await asyncio.to_thread(self._follow, sock)
        finally:
            self._ends.discard(sock)

    def cut(self) -> None:
        """The transfer is over: its segment goes if it was made here, and who is not done with it sees that."""
        with self._news:
            self._is_over = True
            self._news.notify_all()
        self._begun.set()
        for sock in self._ends:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that moves bytes through it
        if self._path and self._is_own:
            Path(self._path).unlink(missing_ok=True)

    def _fill(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        segment = Segment.create(self._cluster, self._nbytes)
        try:
            self._path = segment.path
            loop.call_soon_threadsafe(self._begun.set)
            for landed in receive_segment(sock, segment):
                self._note(landed)
            self._note(segment.nbytes)
        except BaseException:
            segment.unlink()
            raise
        finally:
            segment.close()

    def _note(self, landed: int) -> None:
        with self._news:
            if self._is_over:
                raise ConnectionLost("the transfer was given up")
            self._landed = landed
            self._news.notify_all()

    def _follow(self, sock: socket.socket) -> None:
        with open(self._path, "rb") as file:
            sent = 0
            while sent < self._nbytes:
                sent += sock.sendfile(file, sent, self._wait_beyond(sent) - sent)

    def _wait_beyond(self, sent: int) -> int:
        """The bytes that are there, as soon as they are more than those sent."""
        with self._news:
            if not self._news.wait_for(lambda: self._is_over or self._landed > sent, self._stall):
                raise TimeoutError(f"not a byte for {self._stall:g} s")
            if self._is_over:
                raise ConnectionLost("the transfer was given up")
            return self._landed
