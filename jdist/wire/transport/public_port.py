"""Listen at the one port that nodes on other hosts need to reach, and accept connections.

A connection that begins like ZeroMQ's is joined to the control port on the loopback interface, byte by byte: the
traffic is encrypted from end to end, and the control port decides who may speak. Every other connection is for the data
port. Clients, and nodes on the controller's own host, use these two ports directly.

Accepting resumes after the process has run out of file descriptors.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import cast

import psutil

_log = logging.getLogger("jdist.wire")

_PAUSE = 1.0  # Seconds until the next attempt after one that has failed: the socket stays readable.


class Acceptor:
    """``on_accept`` is called with each connection."""

    def __init__(self, listener: socket.socket, on_accept: Callable[[socket.socket], object]):
        self._listener = listener
        self._on_accept = on_accept
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._start()

    def _start(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # whoever has dialled has ended
            return
        except OSError as e:
            _log.warning("a connection could not be accepted: %s", e)
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(_PAUSE, self._start)
        else:
            self._on_accept(sock)

    def close(self) -> None:
        """Close the listening socket."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()


ZMTP = b"\xff"  # The first byte of a ZeroMQ greeting; no header of the data port begins with it.
MOST_PENDING = 256  # A peer with a key authenticates within milliseconds, before as many others have come.
_BEFORE_AUTHENTICATION = 64 + 170  # Bytes that any peer is sent: ZMTP's greeting and CurveZMQ's WELCOME.
_FAR = (("192.0.2.1", 9), ("2001:db8::1", 9))  # Addresses for documentation: reached by the default route.


def own_addresses() -> tuple[str, ...]:
    """This host's addresses that others may use, the default routes' first; "127.0.0.1" if there is none."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found: list[str] = []
    for interface, addresses in psutil.net_if_addrs().items():
        for address in (a.address for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)):
            read = ipaddress.ip_address(address.partition("%")[0])
            if interface in up and not (read.is_loopback or read.is_link_local or read.is_multicast):
                found.append(address)  # link-local ones mean nothing without the name of the peer's interface
    first: list[str] = []
    for peer in _FAR:
        with contextlib.suppress(OSError):
            first.append(address_towards(peer))
    return tuple(dict.fromkeys([*(a for a in first if a in found), *found])) or ("127.0.0.1",)


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
    """A bounded set of unauthenticated connections; when it is full, the task that serves the oldest is cancelled."""

    def __init__(self, most: int = MOST_PENDING):
        self._most = most
        self._tasks: dict[socket.socket, asyncio.Task[None]] = {}  # Oldest first.

    def add(self, sock: socket.socket, serving: asyncio.Task[None]) -> None:
        if len(self._tasks) >= self._most:
            self._tasks.pop(next(iter(self._tasks))).cancel()
            _log.debug("data port: dropped a connection to make room for newer pending connections")
        self._tasks[sock] = serving

    def discard(self, sock: socket.socket) -> None:
        """Remove a connection that has authenticated or ended; may be called again."""
        self._tasks.pop(sock, None)

    def __len__(self) -> int:
        return len(self._tasks)


class _JoinedEnd(asyncio.Protocol):
    """One of two joined connections: ``other`` sends on what it receives, and slows it down to its own pace.

    Data sent before this end is connected is kept, and sent once it is. Pausing the other end until then does not work
    everywhere: asyncio in Python 3.11.2 ignores ``pause_reading`` in ``connection_made``.
    """

    transport: asyncio.Transport
    other: "_JoinedEnd"

    def __init__(self, on_end: Callable[[], object], on_received: Callable[[int], object] = lambda _: None):
        """``on_received`` is called with the number of bytes so far."""
        self._received = 0
        self._early = bytearray()  # Data sent before the connection was made.
        self._is_connected = False
        self._on_end = on_end
        self._on_received = on_received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._is_connected = True
        self.transport.write(self._early)

    def send(self, data: bytes) -> None:
        """Write to this end's connection, or keep the data until it is made."""
        if self._is_connected:
            self.transport.write(data)
        else:
            self._early += data

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        self._on_received(self._received)
        self.other.send(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def eof_received(self) -> None:
        self.transport.abort()  # at once, even if the peer does not read what was sent to it

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._on_end()


async def join_to_control(sock: socket.socket, begun: bytes, port: int, on_authenticated: Callable[[], object]) -> None:
    """Join a connection, of which ``begun`` has been read, to the control ``port`` until either ends; close both.

    ``on_authenticated`` is called, perhaps often, once the control port has authenticated the peer. Raises OSError.
    """

    def count(received: int) -> None:
        if received > _BEFORE_AUTHENTICATION:
            on_authenticated()

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    peer, control = _JoinedEnd(ended.set), _JoinedEnd(ended.set, count)
    peer.other, control.other = control, peer
    control.send(begun)
    with contextlib.ExitStack() as closing:
        await loop.create_connection(lambda: control, "127.0.0.1", port)
        closing.callback(control.transport.abort)
        await loop.connect_accepted_socket(lambda: peer, sock)
        closing.callback(peer.transport.abort)
        await ended.wait()
