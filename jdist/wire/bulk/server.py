"""The data port: one plain TCP port of the controller through which bulk bytes pass, beside the control port.

A connection begins with one line, ``JDIST1 VERB NAME``, where NAME is a random word that its owner got over the
encrypted control port:

- ``PUT``: the peer sends a transfer's bytes, once; when all are where they should be, the answer is ``k``.
- ``GET``: the peer receives them. They are passed on from the PUT as they come (a :class:`TransferRelay`, one GET),
  or kept in shared memory meanwhile (a :class:`StoredTransfer`, several).
  On the controller's own host, a GET of the first kind may come over a Unix socket, ``near``, too; what it receives
  is one byte and the PUT's connection, handed over: no hop in between is as fast as none.
- ``LIFE``: a liveness connection, once (see wire/transport/liveness).
- ``PING``: the answer is ``k`` if NAME is this cluster's: somebody looks for its controller.

What comes through the door (see wire/transport/public_port) is either such a connection or one for the control port.

Only raw buffers of tensors and arrays pass here, as they do between the ranks themselves; whatever could run code when
it is unpacked (pickles) travels in the encrypted messages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from jdist.core.errors import JdistError
from jdist.core.messages.base import ProbeWire
from jdist.wire.bulk.receive import StoredTransfer
from jdist.wire.bulk.relay import TransferRelay
from jdist.wire.transport.dialing import MAGIC, STALL, is_same_user
from jdist.wire.transport.liveness import LivenessConnection
from jdist.wire.transport.pending_connections import PendingConnections
from jdist.wire.transport.public_port import ZMTP, JoinedConnections, join_to
from jdist.wire.values.segments import Probe

_log = logging.getLogger("jdist.wire")

_CONTROL = "control"
"""In place of a verb: the connection is for the control port."""
_HEADER_LIMIT = 256
_HEADER_TIMEOUT = 10.0
_LIFE_WITHIN = 60.0
"""Seconds for a liveness connection to be dialled, from when its name was given out."""
_MOST_TRANSFERS = 1024
"""Of one client, at a time."""
_REST = 0.1
"""Seconds without taking anybody in, when there is no descriptor left for it."""


class DataServer:
    """The controller's data port on the running loop. A transfer belongs to a client, and ends with it."""

    def __init__(self, cluster: str, on_life_end: Callable[[str, bool], None], stall: float = STALL):
        """``on_life_end(name, is_dead)``: whether the process is gone, or the connection broke."""
        self._cluster = cluster
        self._stall = stall
        self._on_life_end = on_life_end
        self._transfers: dict[str, TransferRelay | StoredTransfer] = {}
        self._owners: dict[str, str] = {}
        self._expected_lives: dict[str, asyncio.TimerHandle] = {}
        self._newcomers = PendingConnections()
        self._lives: dict[str, LivenessConnection] = {}
        self._life_ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        self._joints: set[JoinedConnections] = set()
        self._control_port = 0
        self.port = 0
        self.near = ""
        """The Unix socket's name in the abstract namespace, which needs no file; "" where there is none."""

    def listen(self, host: str, port: int = 0) -> None:
        """Bind; ``port`` and ``near`` say where afterwards."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listeners.append(socket.create_server((host, port), family=family, backlog=512))
        self.port = self._listeners[0].getsockname()[1]
        if sys.platform == "linux":
            self.near = f"jdist-{self._cluster}-{secrets.token_hex(16)}"
            self._listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._listeners[1].bind(f"\0{self.near}")
            self._listeners[1].listen(64)
        for listener in self._listeners:
            self._take_in(listener)

    def listen_publicly(self, door: socket.socket, control_port: int) -> None:
        """Serve what comes through the door, the control port's connections included."""
        self._control_port = control_port
        self._listeners.append(door)
        self._take_in(door)

    def _take_in(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._keep(self._accept(listener))

    def allow_liveness(self, name: str) -> None:
        """A liveness connection of this name may come; if it does not in time, it counts as broken."""
        loop = asyncio.get_running_loop()
        self._expected_lives[name] = loop.call_later(_LIFE_WITHIN, self._give_up_life, name)

    def _give_up_life(self, name: str) -> None:
        del self._expected_lives[name]
        self._on_life_end(name, False)

    def is_full(self, owner: str) -> bool:
        """Whether a client has as many transfers as it may."""
        return sum(o == owner for o in self._owners.values()) >= _MOST_TRANSFERS

    def pass_on(self, name: str, nbytes: int, owner: str) -> None:
        """A PUT of this name and size may come, and a GET to which its bytes go."""
        self._add(name, TransferRelay(nbytes, self._stall), owner)

    def expect(self, name: str, nbytes: int, owner: str) -> None:
        """A PUT of this name and size may come, whose bytes are kept for GETs."""
        self._add(name, StoredTransfer(self._cluster, nbytes, self._stall), owner)

    def offer(self, name: str, nbytes: int, probe: ProbeWire | None, path: str, owner: str) -> bool:
        """Let nodes GET the segment at ``path`` if this host shares it; False if it does not."""
        if probe is None or not Probe(probe.path, probe.nonce).is_here():
            return False
        self._add(name, StoredTransfer.of(self._cluster, nbytes, self._stall, path), owner)
        return True

    def forget(self, name: str) -> None:
        """The transfer is over: what still moves is cut, what was kept here goes."""
        self._owners.pop(name, None)
        transfer = self._transfers.pop(name, None)
        if transfer is not None:
            transfer.cut()

    def forget_all(self, owner: str) -> None:
        """The same for all transfers of a client that is gone."""
        for name in [n for n, o in self._owners.items() if o == owner]:
            self.forget(name)

    async def liveness_ended(self, names: Iterable[str]) -> None:
        """Until none of these liveness connections stands any more."""
        names = set(names)
        while names & set(self._lives):
            self._life_ended.clear()
            await self._life_ended.wait()

    def close(self) -> None:
        """Stop listening, and end every transfer and liveness connection."""
        for task in self._tasks:
            task.cancel()
        for listener in self._listeners:
            listener.close()
        for life in self._lives.values():
            life.close()
        for expected in self._expected_lives.values():
            expected.cancel()
        for joint in list(self._joints):
            joint.close()
        self._lives.clear()
        for name in list(self._transfers):
            self.forget(name)

    def _add(self, name: str, transfer: TransferRelay | StoredTransfer, owner: str) -> None:
        self._transfers[name] = transfer
        self._owners[name] = owner

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as e:
                if listener.fileno() < 0:
                    return
                _log.warning("data port: a connection could not be accepted: %s", e)  # no descriptor is left, mostly
                await asyncio.sleep(_REST)
                continue
            sock.setblocking(False)
            served = self._keep(self._serve(sock))
            served.add_done_callback(partial(_close, sock))  # also when it is cancelled before it began

    async def _serve(self, sock: socket.socket) -> None:
        try:
            verb, name = await self._meet(sock)
            if verb == _CONTROL:
                await self._join(sock.dup())
            elif verb == "PING":
                if secrets.compare_digest(name.encode(), self._cluster.encode()):
                    sock.send(b"k")
            elif verb == "LIFE" and name in self._expected_lives:
                self._start_life(name, sock.dup())
            elif verb in ("PUT", "GET") and name in self._transfers:
                await self._move(verb, name, sock)
            else:
                _log.warning("data port: dropped a connection for %r %r, which is not expected", verb, name[:12])
        except ValueError as e:
            _log.warning("data port: dropped a connection: %s", e)
        except (OSError, TimeoutError, JdistError):
            return  # the peer sees its connection end, and says so

    async def _meet(self, sock: socket.socket) -> tuple[str, str]:
        """What somebody comes for. Raises ValueError when that cannot be told."""
        if not is_same_user(sock):
            raise ValueError("it came from a process of another user")
        coming = asyncio.get_running_loop().create_task(_read_header(sock))
        number = self._newcomers.enter(coming.cancel)
        try:
            await asyncio.wait([coming])
        finally:
            coming.cancel()
            self._newcomers.leave(number)
        if coming.cancelled():
            raise TimeoutError("it had to make room for others")
        return coming.result()

    async def _join(self, sock: socket.socket) -> None:
        """Let a connection through to the control port; until that has let it in, it is a newcomer."""
        end: list[Callable[[], object]] = []
        number = self._newcomers.enter(lambda: [close() for close in end])

        def ended(joint: JoinedConnections) -> None:
            self._joints.discard(joint)
            self._newcomers.leave(number)

        def proved() -> None:
            self._newcomers.leave(number)

        try:
            joint = await join_to(sock, ZMTP, self._control_port, ended, proved)
        except BaseException:
            self._newcomers.leave(number)
            raise
        self._joints.add(joint)
        end.append(joint.close)

    async def _move(self, verb: str, name: str, sock: socket.socket) -> None:
        transfer = self._transfers.get(name)
        try:
            match verb, transfer:
                case "PUT", StoredTransfer():
                    await transfer.receive(sock)
                case "GET", StoredTransfer():
                    await transfer.send(sock)
                case "PUT", TransferRelay():
                    await transfer.give(sock)
                case "GET", TransferRelay():
                    await transfer.take(sock)
        finally:
            if isinstance(transfer, TransferRelay) and transfer.is_over and self._transfers.get(name) is transfer:
                self.forget(name)

    def _start_life(self, name: str, sock: socket.socket) -> None:
        def ended(is_dead: bool) -> None:
            del self._lives[name]
            self._life_ended.set()
            self._on_life_end(name, is_dead)

        self._expected_lives.pop(name).cancel()
        self._lives[name] = LivenessConnection(sock, ended)


def _close(sock: socket.socket, _: object) -> None:
    sock.close()


async def _read_header(sock: socket.socket) -> tuple[str, str]:
    loop = asyncio.get_running_loop()
    data = b""
    until = loop.time() + _HEADER_TIMEOUT
    while not data.endswith(b"\n"):  # byte by byte: what follows belongs to the transfer
        async with asyncio.timeout_at(until):
            byte = await loop.sock_recv(sock, 1)
        if byte == ZMTP and not data:
            return _CONTROL, ""
        if not byte and not data:
            raise ConnectionAbortedError("somebody only looked whether anybody listens")
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
