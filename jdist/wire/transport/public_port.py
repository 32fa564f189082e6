"""The public port: the one port of the controller that nodes on other hosts need to reach, and the addresses it is at.

A connection that begins like ZeroMQ's is joined to the control port on the loopback interface, byte by byte: the
traffic is encrypted from end to end, and the control port decides who may speak. Every other connection is for the data
port. Clients, and nodes on the controller's own host, use these two ports directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import socket
from collections.abc import Callable

import psutil

ZMTP = b"\xff"  # The first byte of a ZeroMQ greeting; no header of the data port begins with it.
MOST_PENDING = 256
_PIECE = 256 << 10
# Bytes that the control port sends to anyone who has its public key: ZMTP's greeting and CurveZMQ's WELCOME. After
# these it has authenticated the peer, or closes the connection.
_BEFORE_AUTHENTICATION = 64 + 170
# Addresses reserved for documentation: the way to them is the default route.
_FAR = (("192.0.2.1", 9), ("2001:db8::1", 9))


def own_addresses() -> tuple[str, ...]:
    """Every address of this host that others may use, those of the default routes first; "127.0.0.1" if there is none.

    Link-local addresses are left out: they mean nothing without the name of the peer's interface.
    """
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        a.address
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
        for a in addresses
        if a.family in (socket.AF_INET, socket.AF_INET6) and _is_usable(a.address)
    ]
    first: list[str] = []
    for peer in _FAR:
        with contextlib.suppress(OSError):
            first.append(address_towards(peer))
    return tuple(dict.fromkeys([*(a for a in first if a in found), *found])) or ("127.0.0.1",)


def _is_usable(address: str) -> bool:
    read = ipaddress.ip_address(address.partition("%")[0])
    return not (read.is_loopback or read.is_link_local or read.is_multicast)


def address_towards(peer: tuple[str, int]) -> str:
    """The address of the interface through which ``peer`` is reached; no packet is sent. Raises OSError."""
    with socket.socket(_family(peer[0]), socket.SOCK_DGRAM) as s:
        s.connect(peer)
        return str(s.getsockname()[0])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def open_public_port(host: str, port: int = 0) -> socket.socket:
    """A listener at ``host`` ("*": at every address of this host, of both families). Raises OSError."""
    if host != "*":
        return socket.create_server((host, port), family=_family(host), backlog=512)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be compiled in and switched off
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=512, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=512)


class PendingConnections:
    """A bounded set of unauthenticated connections; when it is full, the oldest is closed.

    A flood of them costs a bounded number of descriptors. A peer with a key authenticates within milliseconds, before
    as many others have come.
    """

    def __init__(self, most: int = MOST_PENDING):
        self._most = most
        self._closers: dict[int, Callable[[], object]] = {}
        self._numbers = itertools.count()

    def add(self, close: Callable[[], object]) -> int:
        """Add a connection that ``close`` closes; its number, for :meth:`discard`."""
        if len(self._closers) >= self._most:
            oldest = next(iter(self._closers))
            self._closers.pop(oldest)()
        number = next(self._numbers)
        self._closers[number] = close
        return number

    def discard(self, number: int) -> None:
        """Remove a connection that has authenticated or ended; may be called again."""
        self._closers.pop(number, None)

    def __len__(self) -> int:
        return len(self._closers)


class JoinedConnections:
    """Two connections joined into one. ``on_end`` is called once, when either has ended; both are closed then.

    ``on_authenticated`` is called once, when ``control``, the control port, has authenticated the peer.
    """

    def __init__(
        self,
        peer: socket.socket,
        control: socket.socket,
        on_end: Callable[[JoinedConnections], None],
        on_authenticated: Callable[[], object] = lambda: None,
    ):
        self._sockets = (peer, control)
        self._from_control = 0
        self._on_authenticated: Callable[[], object] | None = on_authenticated
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        for sock in self._sockets:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(peer, self._relay, peer, control)
        self._loop.add_reader(control, self._relay, control, peer)

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            data = source.recv(_PIECE)
            if not data:
                self.close()
                return
            if source is self._sockets[1]:
                self._count(len(data))
            self._send(source, sink, data)
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def _count(self, nbytes: int) -> None:
        self._from_control += nbytes
        if self._from_control > _BEFORE_AUTHENTICATION and self._on_authenticated is not None:
            self._on_authenticated()
            self._on_authenticated = None

    def _send(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        """Send; nothing more is read from a source whose sink is slower."""
        try:
            sent = sink.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._loop.remove_reader(source)
            self._loop.add_writer(sink, self._send_rest, source, sink, data[sent:])

    def _send_rest(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        self._loop.remove_writer(sink)
        try:
            self._loop.add_reader(source, self._relay, source, sink)
            self._send(source, sink, data)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close both connections; may be called again."""
        for sock in self._sockets:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock)
                self._loop.remove_writer(sock)
                sock.close()
        on_end, self._on_end = self._on_end, lambda _: None
        on_end(self)


async def join_to_control(
    peer: socket.socket,
    begun: bytes,
    port: int,
    on_end: Callable[[JoinedConnections], None],
    on_authenticated: Callable[[], object] = lambda: None,
) -> JoinedConnections:
    """Join a connection, of which ``begun`` has been read, to the control ``port`` on the loopback interface.

    Raises OSError after closing both.
    """
    loop = asyncio.get_running_loop()
    control = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        control.setblocking(False)
        await loop.sock_connect(control, ("127.0.0.1", port))
        await loop.sock_sendall(control, begun)
        return JoinedConnections(peer, control, on_end, on_authenticated)
    except BaseException:
        control.close()
        peer.close()
        raise
