"""Relay: bytes of one PUT at the data port are sent to one GET as they arrive.

They are stored nowhere in between: a slow receiver slows the sender through TCP itself. On Linux they move from socket
to socket inside the kernel (``splice``), elsewhere through a buffer that stays in the processor's cache. A GET over a
Unix socket, from the same host, is handed the PUT's connection itself, and no byte passes here.
"""

import asyncio
import contextlib
import fcntl
import os
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from jdist.core.errors import ConnectionLost, ProtocolError
from jdist.wire.transport.dialing import receive_pieces

_PIPE = 1 << 20  # Bytes: the largest pipe that any user may have.
_PIECE = 1 << 22  # Bytes asked of a socket at once: a pipe counts pages, and network pages hold more.


class TransferRelay:
    """One transfer of ``nbytes`` bytes. Either end may come first, and waits ``stall`` seconds for the other."""

    def __init__(self, nbytes: int, stall: float):
        self._nbytes = nbytes
        self._stall = stall
        self._ends: dict[str, socket.socket] = {}
        self._both_here = asyncio.Event()
        self._over = asyncio.Event()

    async def put(self, sock: socket.socket) -> None:
        """Serve the PUT and confirm it. Raises TimeoutError, OSError or a JdistError when bytes do not arrive."""
        async with self._both_ends("PUT", sock):
            get = self._ends["GET"]
            if get.family == socket.AF_UNIX:  # the receiver is on this host: it gets the PUT's connection, and confirms
                socket.send_fds(get, [b"k"], [sock.fileno()])
                self._ends.clear()
                return
            # The thread has its own descriptors: those that are served here may be closed before it notices the end.
            await asyncio.to_thread(relay, sock.dup(), get.dup(), self._nbytes, self._stall)
            sock.send(b"k")

    async def get(self, sock: socket.socket) -> None:
        """Serve the GET, to the end of the transfer. Raises TimeoutError when no PUT comes."""
        async with self._both_ends("GET", sock):
            await self._over.wait()  # the PUT's task moves the bytes, or gives up

    def cut(self) -> None:
        """End the transfer: both ends close, which a peer that lacks bytes notices."""
        self._over.set()
        self._both_here.set()
        for sock in self._ends.values():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # also wakes the thread that moves bytes

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @contextlib.asynccontextmanager
    async def _both_ends(self, verb: str, sock: socket.socket) -> AsyncIterator[None]:
        """Wait for the other end; the transfer is over afterwards."""
        if verb in self._ends or self.is_over:
            raise ProtocolError(f"a second {verb} of one transfer")
        self._ends[verb] = sock
        if len(self._ends) == 2:
            self._both_here.set()
        try:
            async with asyncio.timeout(self._stall):
                await self._both_here.wait()
            if self.is_over:
                raise ConnectionLost("the transfer was cancelled")
            yield
        finally:
            self.cut()


def relay(source: socket.socket, sink: socket.socket, nbytes: int, stall: float) -> None:
    """Move ``nbytes`` bytes from ``source`` to ``sink``, and close both.

    Raises ConnectionLost when the source ends early, TimeoutError after ``stall`` seconds of standstill, else OSError.
    """
    with source, sink:
        (splice if hasattr(os, "splice") else copy)(source, sink, nbytes, stall)


def splice(source: socket.socket, sink: socket.socket, nbytes: int, stall: float) -> None:
    """:func:`relay` inside the kernel, where it can."""
    source.setblocking(False)
    sink.setblocking(False)
    flags = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
    left = nbytes
    with _pipe() as (outlet, inlet):
        while left:
            take = partial(os.splice, source.fileno(), inlet, min(left, _PIECE), flags=flags)
            n = _when_ready(source, select.POLLIN, stall, take)
            if n == 0:
                raise ConnectionLost(f"the transfer ended after {nbytes - left} of {nbytes} bytes")
            left -= n
            more = os.SPLICE_F_MORE if left else 0  # full packets only until the last one: nearly twice as fast
            while n:
                give = partial(os.splice, outlet, sink.fileno(), n, flags=flags | more)
                n -= _when_ready(sink, select.POLLOUT, stall, give)


def copy(source: socket.socket, sink: socket.socket, nbytes: int, stall: float) -> None:
    """:func:`relay` through a buffer."""
    source.settimeout(stall)
    sink.settimeout(stall)
    for _, piece in receive_pieces(source, nbytes):
        sink.sendall(piece)


def _when_ready(sock: socket.socket, event: int, stall: float, step: Callable[[], int]) -> int:
    """The result of ``step``, once the socket is ready for it."""
    while True:
        try:
            return step()
        except BlockingIOError:
            poll = select.poll()
            poll.register(sock, event)
            if not poll.poll(stall * 1000):
                raise TimeoutError(f"not a byte for {stall:g} s") from None


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """The read end and the write end of a large pipe."""
    ends = os.pipe()
    try:
        with contextlib.suppress(OSError):  # this user has too many large pipes: a small one works, too
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, _PIPE)
        yield ends
    finally:
        for end in ends:
            os.close(end)
