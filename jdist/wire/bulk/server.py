"""The data port: one plain TCP port of the controller for bulk bytes, beside the control port.

A connection begins with one line, ``JDIST1 VERB NAME``, where NAME is a random word that its owner received through the
encrypted control port:

- ``PUT``: the peer sends a transfer's bytes, once; the answer is ``k`` when all of them are where they belong.
- ``GET``: the peer receives them. They are relayed from the PUT as they arrive (a :class:`TransferRelay`, one GET),
  or stored in shared memory in the meantime (a :class:`StoredTransfer`, several).
  On the controller's own host, a GET of the first kind may come over a Unix socket, ``near``: it receives one byte
  and the PUT's connection itself, which is as fast as no relay at all.
- ``LIFE``: a liveness connection, once (see wire/transport/liveness).
- ``PING``: the answer is ``k`` if NAME is this cluster's: a peer looks for its controller.

A connection at the public port (see wire/transport/public_port) is one of these or one for the control port.

Only raw buffers of tensors and arrays pass here, as they do between the ranks themselves; whatever could run code when
it is unpacked (pickles) travels in encrypted messages.
"""

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from jdist.core.errors import JdistError
from jdist.core.messages.base import ProbeWire
from jdist.wire.bulk.receive import StoredTransfer
from jdist.wire.bulk.relay import TransferRelay
from jdist.wire.transport.dialing import MAGIC, STALL, is_same_user
from jdist.wire.transport.public_port import ZMTP, PendingConnections, join_to_control
from jdist.wire.transport.sockets import LivenessConnection
from jdist.wire.values.segments import shares_memory

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
