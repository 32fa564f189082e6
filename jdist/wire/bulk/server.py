"""Serve the data port: bulk bytes that are relayed as they arrive, or stored for several receivers.

The data port is a plain TCP port of the controller, beside the control port. A connection begins with one line,
``JDIST1 VERB NAME``, where NAME is a random word that its owner received through the encrypted control port:

- ``PUT``: the peer sends a transfer's bytes, once; the answer is ``k`` when all of them are where they belong.
- ``GET``: the peer receives them. They are relayed from the PUT as they arrive (a :class:`TransferRelay`, one GET),
  or stored in shared memory in the meantime (a :class:`StoredTransfer`, several GETs, none of which waits for the end
  of the PUT). On the controller's own host, a GET of the first kind may come over a Unix socket, ``near``: it receives
  one byte and the PUT's connection itself, which is as fast as no relay at all.
- ``LIFE``: a liveness connection, once (see wire/transport/sockets).
- ``PING``: the answer is ``k`` if NAME is this cluster's: a peer looks for its controller.

A connection at the public port (see wire/transport/public_port) is one of these or one for the control port.

Relayed bytes are stored nowhere, so a slow receiver slows the sender through TCP itself. On Linux they move from socket
to socket inside the kernel (``splice``), elsewhere through a buffer that stays in the processor's cache.

Only raw buffers of tensors and arrays pass here, as they do between the ranks themselves. Whatever could run code when
it is unpacked (pickles) travels in encrypted messages.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import select
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from jdist.core.errors import ConnectionLost, JdistError, ProtocolError
from jdist.core.messages.base import ProbeWire
from jdist.wire.transport.dialing import MAGIC, STALL, is_same_user, receive_pieces, receive_segment
from jdist.wire.transport.public_port import ZMTP, PendingConnections, join_to_control
from jdist.wire.transport.sockets import LivenessConnection
from jdist.wire.values.segments import Segment, shares_memory


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


_log = logging.getLogger("jdist.wire")

_CONTROL = "control"  # In place of a verb: the connection is for the control port.
_HEADER_LIMIT = 256
_HEADER_TIMEOUT = 10.0
_LIFE_WITHIN = 60.0  # Seconds in which a liveness connection must be dialled after its name was given out.
_MOST_TRANSFERS = 1024  # Transfers of one client at a time.
_ACCEPT_AGAIN = 0.1  # Seconds until the next accept when no descriptor is left.


class DataServer:
    """The controller's data port on the running loop. A transfer belongs to a client, and ends with it."""

    def __init__(self, cluster: str, on_liveness_end: Callable[[str, bool], None], stall: float = STALL):
        """``on_liveness_end(name, is_dead)``: the process is gone, or else the connection broke."""
        self._cluster = cluster
        self._stall = stall
        self._on_liveness_end = on_liveness_end
        self._transfers: dict[str, tuple[TransferRelay | StoredTransfer, str]] = {}  # By name, each with its owner.
        self._expected: dict[str, asyncio.TimerHandle] = {}  # Liveness connections not dialled yet, with deadlines.
        self._liveness: dict[str, LivenessConnection] = {}
        self._pending = PendingConnections()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        self._control_port = 0
        self.port = 0
        self.near = ""  # The Unix socket's name in the abstract namespace, which needs no file; "" where there is none.

    def listen(self, host: str, port: int = 0) -> None:
        """Listen at ``host``; sets :attr:`port` and :attr:`near`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listeners.append(socket.create_server((host, port), family=family, backlog=512))
        self.port = self._listeners[0].getsockname()[1]
        if sys.platform == "linux":
            self.near = f"jdist-{self._cluster}-{secrets.token_hex(16)}"
            self._listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._listeners[1].bind(f"\0{self.near}")
            self._listeners[1].listen(64)
        for listener in self._listeners:
            self._create_task(self._accept(listener))

    def listen_publicly(self, listener: socket.socket, control_port: int) -> None:
        """Serve connections at the public port, those for the control port included."""
        self._control_port = control_port
        self._listeners.append(listener)
        self._create_task(self._accept(listener))

    def allow_liveness(self, name: str) -> None:
        """Expect a liveness connection of this name; if it is not dialled in time, it counts as broken."""
        loop = asyncio.get_running_loop()
        self._expected[name] = loop.call_later(_LIFE_WITHIN, self._drop_expected, name)

    def _drop_expected(self, name: str) -> None:
        del self._expected[name]
        self._on_liveness_end(name, False)

    def is_full(self, owner: str) -> bool:
        """Whether a client has as many transfers as it may have."""
        return sum(o == owner for _, o in self._transfers.values()) >= _MOST_TRANSFERS

    def pass_on(self, name: str, nbytes: int, owner: str) -> None:
        """Expect a PUT of this name and size, and a GET to which its bytes are relayed."""
        self._transfers[name] = TransferRelay(nbytes, self._stall), owner

    def expect(self, name: str, nbytes: int, owner: str) -> None:
        """Expect a PUT of this name and size, whose bytes are stored for GETs."""
        self._transfers[name] = StoredTransfer(self._cluster, nbytes, self._stall), owner

    def offer(self, name: str, nbytes: int, probe: ProbeWire | None, path: str, owner: str) -> bool:
        """Let nodes GET the segment at ``path`` if this host shares it; False if it does not."""
        if not shares_memory(probe):
            return False
        self._transfers[name] = StoredTransfer(self._cluster, nbytes, self._stall, path), owner
        return True

    def forget(self, name: str) -> None:
        """End the transfer: what still moves is cut, and what was stored here is removed."""
        if name in self._transfers:
            self._transfers.pop(name)[0].cut()

    def forget_all(self, owner: str) -> None:
        """End all transfers of a client that is gone."""
        for name in [n for n, (_, o) in self._transfers.items() if o == owner]:
            self.forget(name)

    def close(self) -> None:
        """Stop listening, and end every transfer and liveness connection."""
        for task in self._tasks:
            task.cancel()
        for listener in self._listeners:
            listener.close()
        for connection in self._liveness.values():
            connection.close()
        for expected in self._expected.values():
            expected.cancel()
        self._liveness.clear()
        for name in list(self._transfers):
            self.forget(name)

    def _create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as e:
                if listener.fileno() < 0:
                    return
                _log.warning("data port: a connection could not be accepted: %s", e)  # mostly: no descriptor is left
                await asyncio.sleep(_ACCEPT_AGAIN)
                continue
            sock.setblocking(False)
            serving = self._create_task(self._serve(sock))
            serving.add_done_callback(partial(self._end, sock))  # also when it is cancelled before it began
            self._pending.add(sock, serving)

    def _end(self, sock: socket.socket, _serving: object) -> None:
        self._pending.discard(sock)
        sock.close()

    async def _serve(self, sock: socket.socket) -> None:
        """Serve a connection, which is pending until its header is read or the control port has authenticated it."""
        try:
            verb, name = await _read_header(sock)
            if verb == _CONTROL:
                await join_to_control(sock, ZMTP, self._control_port, partial(self._pending.discard, sock))
                return
            self._pending.discard(sock)
            if verb == "PING":
                if secrets.compare_digest(name.encode(), self._cluster.encode()):
                    sock.send(b"k")
            elif verb == "LIFE" and name in self._expected:
                await self._start_liveness(name, sock.dup())
            elif verb in ("PUT", "GET") and name in self._transfers:
                await self._move(verb, name, sock)
            else:
                _log.warning("data port: dropped a connection for %r %r, which is not expected", verb, name[:12])
        except ValueError as e:
            _log.warning("data port: dropped a connection: %s", e)
        except (OSError, TimeoutError, JdistError) as e:
            _log.debug("data port: a connection ended: %r", e)  # the peer notices, and reports it

    async def _move(self, verb: str, name: str, sock: socket.socket) -> None:
        transfer, _ = served = self._transfers[name]
        try:
            await (transfer.put(sock) if verb == "PUT" else transfer.get(sock))
        finally:
            if isinstance(transfer, TransferRelay) and transfer.is_over and self._transfers.get(name) is served:
                self.forget(name)

    async def _start_liveness(self, name: str, sock: socket.socket) -> None:
        def ended(is_dead: bool) -> None:
            del self._liveness[name]
            self._on_liveness_end(name, is_dead)

        self._expected.pop(name).cancel()
        self._liveness[name] = connection = LivenessConnection(ended)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)


async def _read_header(sock: socket.socket) -> tuple[str, str]:
    """Verb and name. Raises ValueError for a malformed header, or another user's process."""
    if not is_same_user(sock):
        raise ValueError("it came from a process of another user")
    data = b""
    async with asyncio.timeout(_HEADER_TIMEOUT):
        while not data.endswith(b"\n"):  # byte by byte: what follows belongs to the transfer
            byte = await asyncio.get_running_loop().sock_recv(sock, 1)
            if byte == ZMTP and not data:
                return _CONTROL, ""
            if not byte and not data:
                raise ConnectionAbortedError("the peer sent nothing: it only checked whether the port is open")
            if not byte or len(data) > _HEADER_LIMIT:
                raise ValueError(f"it began with {data[:40]!r}, which is no header")
            data += byte
    words = data.split()
    if len(words) != 3 or words[0] != MAGIC:
        raise ValueError(f"it began with {data[:40]!r}, which is no header of this protocol")
    try:
        return words[1].decode(), words[2].decode()
    except UnicodeDecodeError:
        raise ValueError(f"it began with {data[:40]!r}, which is no text") from None
