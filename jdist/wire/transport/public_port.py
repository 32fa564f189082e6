"""The door: the one port of the controller that nodes on other hosts need to reach; all they say comes through it.

A connection that begins as ZeroMQ's do is joined to the control port on the loopback, byte for byte: what passes is
encrypted from end to end, and who may speak is decided there. Everything else is for the data port. The clients and the
nodes on the controller's own host use the two ports themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

ZMTP = b"\xff"
"""The first byte of a ZeroMQ greeting; no line of the data port's begins with it."""
_PIECE = 256 << 10
_WELCOME = 64 + 170
"""Bytes that the control port says to anybody who has its public key (ZMTP's greeting, CurveZMQ's WELCOME). With the
next it has let the peer in, or ends the connection."""


def open_public_port(host: str, port: int = 0) -> socket.socket:
    """A listener at ``host`` ("*": at every address of this host, of both families). Raises OSError."""
    if host != "*":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be compiled in and switched off
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=512, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=512)


class JoinedConnections:
    """Two connections made one. ``on_end`` is called once, when either has ended; both are closed then.

    ``on_proved`` is called once, when ``other``, the control port, has let in who speaks at ``one``.
    """

    def __init__(
        self,
        one: socket.socket,
        other: socket.socket,
        on_end: Callable[[JoinedConnections], None],
        on_proved: Callable[[], object] = lambda: None,
    ):
        self._sockets = (one, other)
        self._said = 0
        self._on_proved: Callable[[], object] | None = on_proved
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        for sock in self._sockets:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(one, self._pass_on, one, other)
        self._loop.add_reader(other, self._pass_on, other, one)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            data = source.recv(_PIECE)
            if not data:
                self.close()
                return
            if self._on_proved is not None and source is self._sockets[1]:
                self._count(len(data))
            self._give(source, sink, data)
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def _count(self, nbytes: int) -> None:
        self._said += nbytes
        if self._said > _WELCOME and self._on_proved is not None:
            self._on_proved()
            self._on_proved = None

    def _give(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        """Send; nothing more is taken from a source whose sink is slower."""
        try:
            sent = sink.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._loop.remove_reader(source)
            self._loop.add_writer(sink, self._give_rest, source, sink, data[sent:])

    def _give_rest(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        self._loop.remove_writer(sink)
        try:
            self._loop.add_reader(source, self._pass_on, source, sink)
            self._give(source, sink, data)
        except OSError:
            self.close()

    def close(self) -> None:
        """End both; may be called again."""
        for sock in self._sockets:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock)
                self._loop.remove_writer(sock)
                sock.close()
        on_end, self._on_end = self._on_end, lambda _: None
        on_end(self)


async def join_to(
    sock: socket.socket,
    begun: bytes,
    port: int,
    on_end: Callable[[JoinedConnections], None],
    on_proved: Callable[[], object] = lambda: None,
) -> JoinedConnections:
    """Join a connection, of which ``begun`` has been read, to ``port`` on the loopback. Raises OSError; both
    are closed then.
    """
    loop = asyncio.get_running_loop()
    inner = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        inner.setblocking(False)
        await loop.sock_connect(inner, ("127.0.0.1", port))
        await loop.sock_sendall(inner, begun)
        return JoinedConnections(sock, inner, on_end, on_proved)
    except BaseException:
        inner.close()
        sock.close()
        raise
