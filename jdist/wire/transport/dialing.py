"""Dialing: connections to the controller's data port, and the transfers through them (verbs: wire/bulk/server)."""

import asyncio
import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

from jdist.core.errors import ConnectionLost
from jdist.wire.values.segments import Segment

MAGIC = b"JDIST1"
STALL = 60.0  # Seconds without a byte after which a transfer is cancelled.
_WINDOW = 1 << 20
_BUFFER = 256 << 10
_PROGRESS_EVERY = 1.0


def dial_data(address: tuple[str, int], verb: str, name: str) -> socket.socket:
    """A connection to the data port that has sent its header."""
    sock = socket.create_connection(address, timeout=STALL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(MAGIC + f" {verb} {name}\n".encode())
    return sock


async def ping(address: tuple[str, int], cluster: str, timeout: float = 3.0) -> bool:
    """Whether a controller of this cluster listens there."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                await loop.sock_sendall(sock, MAGIC + f" PING {cluster}\n".encode())
                return await loop.sock_recv(sock, 1) == b"k"
    except (OSError, TimeoutError):
        return False


def is_same_user(sock: socket.socket) -> bool:
    """Whether a Unix socket's peer belongs to this process's user; True for TCP, where that is unknown."""
    if sys.platform != "linux" or sock.family != socket.AF_UNIX:
        return True
    peer = struct.Struct("3i")
    _, uid, _ = peer.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, peer.size))
    return bool(uid == os.geteuid())


class Receiver:
    """GETs one transfer into ``memory``, in a thread; another thread may :meth:`cut` it."""

    def __init__(self, address: tuple[str, int], name: str, memory: memoryview, near: str = ""):
        self._address = address
        self._name = name
        self._memory = memory
        self._near = near
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._is_cut = False

    def run(self) -> None:
        """Receive all bytes. Raises ConnectionLost when some are missing."""
        with _explained(f"{self._memory.nbytes} bytes could not be fetched from"):
            if self._near and sys.platform == "linux":
                with self._held(_dial_near(self._near, self._name)) as sock:
                    _, fds, _, _ = socket.recv_fds(sock, 1, 1)
                if not fds:
                    raise ConnectionLost("the transfer ended before it began")
                with self._held(socket.socket(fileno=fds[0])) as put:
                    put.settimeout(STALL)
                    receive_into(put, self._memory)
                    put.sendall(b"k")
            else:
                with self._held(dial_data(self._address, "GET", self._name)) as sock:
                    receive_into(sock, self._memory)

    def cut(self) -> None:
        """Cancel: ``run`` raises at once, and the sender notices. May be called at any time."""
        with self._lock:
            self._is_cut = True
            if self._sock is not None:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _held(self, sock: socket.socket) -> Iterator[socket.socket]:
        with sock:
            with self._lock:
                if self._is_cut:
                    raise ConnectionLost("the transfer was cancelled")
                self._sock = sock
            try:
                yield sock
            finally:
                with self._lock:
                    self._sock = None


def _dial_near(near: str, name: str) -> socket.socket:
    sock = socket.socket(socket.AddressFamily["AF_UNIX"], socket.SOCK_STREAM)
    try:
        sock.settimeout(STALL)
        sock.connect(f"\0{near}")
        if not is_same_user(sock):
            raise ConnectionLost("the controller is gone, and another user listens in its place")
        sock.sendall(MAGIC + f" GET {name}\n".encode())
    except BaseException:
        sock.close()
        raise
    return sock


def get_segment(
    address: tuple[str, int], name: str, cluster: str, nbytes: int, progress: Callable[[int], object]
) -> Segment:
    """GET a transfer into a new segment; reports progress once a second. Raises ConnectionLost if bytes are missing."""
    reported = time.monotonic()
    segment = Segment.create(cluster, nbytes)
    try:
        with _explained(f"{nbytes} bytes could not be fetched from"), dial_data(address, "GET", name) as sock:
            for got in receive_segment(sock, segment):
                if time.monotonic() - reported >= _PROGRESS_EVERY:
                    reported = time.monotonic()
                    progress(got)
    except BaseException:
        segment.close()
        segment.unlink()
        raise
    return segment


def put_segment(address: tuple[str, int], name: str, segment: Segment) -> None:
    """PUT a segment's bytes. Raises ConnectionLost without the controller's confirmation."""
    with _explained(f"{segment.nbytes} bytes could not be sent to"), dial_data(address, "PUT", name) as sock:
        sock.sendall(segment.view)
        sock.shutdown(socket.SHUT_WR)
        if sock.recv(1) != b"k":
            raise ConnectionLost("the controller did not confirm the transfer")


def receive_into(sock: socket.socket, view: memoryview) -> None:
    """Fill ``view`` from the socket. Raises ConnectionLost when the peer ends early, TimeoutError after its timeout."""
    got = 0
    while got < view.nbytes:
        n = sock.recv_into(view[got : got + _WINDOW])
        if n == 0:
            raise ConnectionLost(f"the transfer ended after {got} of {view.nbytes} bytes")
        got += n


def receive_pieces(sock: socket.socket, nbytes: int) -> Iterator[tuple[int, memoryview]]:
    """Receive ``nbytes`` bytes, each piece with its offset. Raises ConnectionLost when the peer ends early."""
    buffer = memoryview(bytearray(_BUFFER))  # one for all pieces: it stays in the processor's cache
    got = 0
    while got < nbytes:
        n = sock.recv_into(buffer[: nbytes - got])
        if n == 0:
            raise ConnectionLost(f"the transfer ended after {got} of {nbytes} bytes")
        yield got, buffer[:n]
        got += n


def receive_segment(sock: socket.socket, segment: Segment) -> Iterator[int]:
    """Fill a new segment; yields the bytes so far after each piece. Raises ConnectionLost when the peer ends early."""
    for offset, piece in receive_pieces(sock, segment.nbytes):
        segment.write(offset, piece)  # page faults of a new mapping would cost more than this copy
        yield offset + len(piece)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise ConnectionLost(f"{what} the controller's data port: {e}") from e
