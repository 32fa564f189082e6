"""Tunnel: several TCP connections and requests over one stream of bytes, such as a login's standard input and output.

Each frame has a header with its kind, the number of its connection and its length. One end accepts a connection and
announces it with OPEN, and the other end dials the address that OPEN names. What arrives at one end leaves at the
other, and so do the two ways in which a connection ends: END after the last byte in one direction, RESET when it broke.

When the tunnel itself breaks, every connection in it is reset at both ends, so that a broken network is not taken for a
peer that has ended (see wire/transport/sockets, liveness connections). When the process of the client ends, they end in
order: it sends BYE, or only its side of the stream is closed.

The receiver of a connection's bytes grants credit for more of them as its own peer takes them, so that a slow one
delays no other. A request (ASK) gets one answer (ANSWER) under its number.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import cast

from jdist.core.errors import ConnectionLost

Address = tuple[str, int]

OPEN, DATA, CREDIT, END, RESET, ASK, ANSWER, BYE = range(8)
_layout = struct.Struct(">BIQ")
_credit = struct.Struct(">I")
_WINDOW = 4 << 20  # Bytes of a connection that may be under way.
_GRANT = _WINDOW // 4  # Bytes that are taken before credit for them is sent.
_BREAKS = 1.0  # Seconds after the end of a stream's input for its output to break, if the network has.
_LONGEST = 16 << 20  # Bytes of any frame but DATA, which is passed on in pieces.
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: close, also by the process's end, resets the connection.
_CLOSE_IN_ORDER = struct.pack("ii", 0, 0)


class TunnelConnection(asyncio.Protocol):
    """One connection through a tunnel, at one of its ends. What it receives before it has joined a tunnel is kept."""

    def __init__(self, on_ready: "Callable[[TunnelConnection], object]" = lambda _: None):
        """``on_ready`` is called once the connection is made."""
        self.number = 0
        self._on_ready = on_ready
        self._tunnel: Tunnel | None = None
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()  # Data for this end's connection, from before it was made.
        self._unsent = bytearray()  # Data of it from before it joined the tunnel.
        self._credit = _WINDOW  # Bytes that may still be sent; below zero by what was read at once.
        self._owed = 0  # Bytes taken for which no credit has been sent.
        self._takes = True  # This end's connection takes what is written to it.
        self._has_ended = {"here": False, "there": False}  # Whose last byte has passed.
        self.is_over = False

    # ------------------------------------------------------------ the connection at this end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._set_linger(_RESET_AT_CLOSE)
        if self.is_over:  # while it was dialled
            self._transport.abort()
            return
        if self._early:
            self._transport.write(bytes(self._early))
            self._early.clear()
        if self._has_ended["there"]:
            self._transport.write_eof()
        self._grant(1)
        self._on_ready(self)

    def data_received(self, data: bytes) -> None:
        if self._tunnel is None:
            self._unsent += data
            if self._transport is not None:
                self._transport.pause_reading()  # not before: Python 3.11.2 would ignore that
            return
        self._credit -= len(data)
        self._tunnel.send(DATA, self.number, data)
        self.pace()

    def eof_received(self) -> bool:
        self._end("here")
        return not self.is_over  # the other direction may go on

    def pause_writing(self) -> None:
        self._takes = False

    def resume_writing(self) -> None:
        self._takes = True
        self._grant(1)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.is_over:
            self.is_over = True
            if self._tunnel is not None:
                self._tunnel.drop(self, RESET)

    # ------------------------------------------------------------ the tunnel's side

    def join(self, tunnel: "Tunnel", number: int) -> None:
        """Belong to a tunnel from now on."""
        self._tunnel, self.number = tunnel, number
        unsent, self._unsent = bytes(self._unsent), bytearray()
        if unsent:
            self.data_received(unsent)
        if self._has_ended["here"]:
            tunnel.send(END, number)
        self.pace()

    def take(self, data: bytes | memoryview) -> None:
        """Write what has come through the tunnel."""
        self._owed += len(data)
        if self._transport is None:
            self._early += data
        elif not self.is_over:
            self._transport.write(data)
        self._grant(_GRANT)

    def _grant(self, least: int) -> None:
        if (
            self._transport is not None
            and self._takes
            and self._owed >= least
            and self._tunnel is not None
            and not self.is_over
        ):
            owed, self._owed = self._owed, 0
            self._tunnel.send(CREDIT, self.number, _credit.pack(owed))

    def add_credit(self, nbytes: int) -> None:
        """The other end has taken so many bytes."""
        self._credit += nbytes
        self.pace()

    def pace(self) -> None:
        """Read from the connection only while there is credit and the tunnel takes more."""
        if self._transport is None or self._tunnel is None or self.is_over or self._has_ended["here"]:
            return
        if self._credit > 0 and self._tunnel.takes:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def finish(self) -> None:
        """No more comes through the tunnel."""
        if self._transport is not None and not self.is_over:
            with contextlib.suppress(OSError):  # it has just been reset
                self._transport.write_eof()
        self._end("there")

    def _end(self, side: str) -> None:
        self._has_ended[side] = True
        if side == "here" and self._tunnel is not None:
            self._tunnel.send(END, self.number)
        if all(self._has_ended.values()) and not self.is_over:
            self.is_over = True
            self._set_linger(_CLOSE_IN_ORDER)
            if self._transport is not None:
                self._transport.close()
            if self._tunnel is not None:
                self._tunnel.drop(self)

    def reset(self) -> None:
        """End the connection as a broken network does."""
        self.is_over = True
        if self._transport is not None:
            self._transport.abort()

    def end_in_order(self) -> None:
        """End the connection as its peer's process does when it ends."""
        self.is_over = True
        self._set_linger(_CLOSE_IN_ORDER)
        if self._transport is not None:
            self._transport.close()

    def _set_linger(self, value: bytes) -> None:
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):  # it has ended
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, value)


class _Output(asyncio.Protocol):
    """The protocol of a tunnel's output where that is a pipe of its own."""

    def __init__(self, tunnel: "Tunnel"):
        self.connection_made = tunnel.connection_made  # type: ignore[method-assign]
        self.pause_writing = tunnel.pause_writing  # type: ignore[method-assign]
        self.resume_writing = tunnel.resume_writing  # type: ignore[method-assign]
        self._tunnel = tunnel

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._tunnel.close()


class Tunnel(asyncio.Protocol):
    """One end. It is the protocol of the stream, or of its input; then `output` is that of its output.

    ``answer`` answers the other end's requests: only an end that has it dials connections, too. ``dials``: the only
    addresses that it dials, for a peer that is no client: then any end of the stream is a break. ``on_end`` is called
    once when the stream has ended.
    """

    def __init__(
        self,
        answer: Callable[[bytes], Awaitable[bytes]] | None,
        on_end: Callable[[], object],
        *,
        dials: Collection[Address] | None = None,
    ):
        self.takes = True  # The stream takes what is written to it.
        self.heard = 0.0  # The loop's time at which something arrived last.
        self._answer = answer
        self._dials = dials
        self._has_client = answer is not None and dials is None
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.WriteTransport | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._connections: dict[int, TunnelConnection] = {}
        self._questions: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = 0  # The number that was given last.
        self._head = bytearray()
        self._frame = (0, 0)  # Kind and connection of the frame that is arriving.
        self._left = 0  # Bytes of it that are still to come.
        self._body = bytearray()
        self.is_over = False

    @property
    def is_idle(self) -> bool:
        """Whether it carries no connection."""
        return not self._connections

    @property
    def output(self) -> asyncio.BaseProtocol:
        """The protocol of the output, where the stream is two pipes."""
        return _Output(self)

    # ------------------------------------------------------------ the stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.append(transport)
        self.heard = self._loop.time()
        if isinstance(transport, asyncio.WriteTransport):
            self._writer = transport

    def pause_writing(self) -> None:
        self.takes = False
        self._pace()

    def resume_writing(self) -> None:
        self.takes = True
        self._pace()

    def _pace(self) -> None:
        for connection in list(self._connections.values()):
            connection.pace()

    def eof_received(self) -> None:
        if not self._has_client:
            self.close()
        else:  # the client's process has ended, or the network has broken, which ends the output, too
            self._loop.call_later(_BREAKS, partial(self.close, in_order=True))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self._has_client:
            self.close()

    def close(self, *, in_order: bool = False) -> None:
        """End the tunnel, and the connections in it: as a broken network does, or in order. May be called again."""
        if self.is_over:
            return
        if in_order:
            self.send(BYE, 0)
        self.is_over = True
        for connection in self._connections.values():
            if in_order:
                connection.end_in_order()
            else:
                connection.reset()
        self._connections.clear()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(ConnectionLost("the connection broke"))
        for task in self._tasks:
            task.cancel()
        for transport in self._transports:
            transport.close()
        self._on_end()

    def send(self, kind: int, connection: int, payload: bytes = b"") -> None:
        """Send a frame."""
        if self._writer is not None and not self.is_over:
            self._writer.write(_layout.pack(kind, connection, len(payload)) + payload)

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        view = memoryview(data)
        while view and not self.is_over:
            if not self._left:
                need = _layout.size - len(self._head)
                self._head += view[:need]
                view = view[need:]
                if len(self._head) < _layout.size:
                    return
                kind, connection, self._left = _layout.unpack(self._head)
                self._head.clear()
                self._frame = (kind, connection)
                is_for_client = kind not in (OPEN, ASK)
                if (
                    kind > BYE
                    or (kind != DATA and self._left > _LONGEST)
                    or (self._answer is None and not is_for_client)
                ):
                    self.close()  # something else writes to this stream
                    return
                if self._left:
                    continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            self._take(*self._frame, piece)

    def _take(self, kind: int, number: int, piece: memoryview) -> None:
        """Handle a piece of a frame."""
        if kind == DATA:
            if (connection := self._connections.get(number)) is not None:
                connection.take(bytes(piece))
            return
        self._body += piece
        if self._left:
            return
        body, self._body = bytes(self._body), bytearray()
        if kind == OPEN:
            connection = self._connections[number] = TunnelConnection()
            connection.join(self, number)  # now: its first bytes may be here already
            self._begin(self._dial(connection, body))
        elif kind == BYE:
            self.close(in_order=True)
        elif kind == ASK:
            self._begin(self._reply(number, body))
        elif kind == ANSWER:
            question = self._questions.get(number)
            if question is not None and not question.done():
                question.set_result(body)
        elif (known := self._connections.get(number)) is not None:
            if kind == CREDIT:
                known.add_credit(*_credit.unpack(body))
            elif kind == END:
                known.finish()
            else:
                del self._connections[number]
                known.reset()

    def _begin(self, work: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------ connections

    def carry(self, connection: TunnelConnection, address: Address) -> None:
        """Carry a connection of this end to an address that the other end dials."""
        self._last += 1
        self._connections[self._last] = connection
        self.send(OPEN, self._last, f"{address[1]} {address[0]}".encode())
        connection.join(self, self._last)

    def drop(self, connection: TunnelConnection, kind: int | None = None) -> None:
        """Forget a connection that has ended; ``kind``: the frame by which the other end is told."""
        if self._connections.pop(connection.number, None) is not None and kind is not None:
            self.send(kind, connection.number)

    async def _dial(self, connection: TunnelConnection, body: bytes) -> None:
        port, _, host = body.decode().partition(" ")
        try:
            address = (host, int(port))
            if self._dials is not None and address not in self._dials:
                raise ValueError(f"this end does not connect to {address}")
            await self._loop.create_connection(lambda: connection, *address)
        except (OSError, ValueError):
            self.drop(connection, RESET)

    # ------------------------------------------------------------ requests

    async def ask(self, request: bytes, timeout: float) -> bytes:
        """The other end's answer. Raises ConnectionLost when the tunnel ends, TimeoutError."""
        if self.is_over:
            raise ConnectionLost("the connection broke")
        self._last += 1
        number, answer = self._last, self._loop.create_future()
        self._questions[number] = answer
        self.send(ASK, number, request)
        try:
            async with asyncio.timeout(timeout):
                return bytes(await answer)
        finally:
            del self._questions[number]

    async def _reply(self, number: int, request: bytes) -> None:
        if self._answer is not None:
            self.send(ANSWER, number, await self._answer(request))
