"""Liveness connections: connections without any traffic, whose end shows whether the peer's process has died.

When a process dies, the system closes its connections in order and at once. A connection that is reset, or on which
TCP's keep-alive probes are not answered, was broken by the network, and says nothing about the process.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from jdist.wire.transport.dialing import MAGIC

# Seconds until the first keep-alive probe, seconds between probes, and their count.
_PROBE_AFTER, _PROBE_EVERY, _PROBES = 5, 2, 3
_DIAL_TIMEOUT = 10.0


class LivenessConnection:
    """One end of a liveness connection; when it ends, ``on_end(is_dead)`` is called on the running loop."""

    def __init__(self, sock: socket.socket, on_end: Callable[[bool], None]):
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_end = on_end
        sock.setblocking(False)
        _keep_alive(sock)
        self._loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        try:
            if self._sock.recv(1):
                return
            is_dead = True
        except BlockingIOError:
            return
        except OSError:
            is_dead = False
        self.close()
        self._on_end(is_dead)

    def close(self) -> None:
        """Close it without calling ``on_end``; may be called again."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()


async def dial_liveness(address: tuple[str, int], name: str, on_end: Callable[[bool], None]) -> LivenessConnection:
    """Dial this process's liveness connection at the controller's data port. Raises OSError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_DIAL_TIMEOUT):
        found = await _resolve(loop, address)
        for i, (family, kind, protocol, _, where) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, where)
                await loop.sock_sendall(sock, MAGIC + f" LIFE {name}\n".encode())
            except BaseException as e:
                sock.close()
                if not isinstance(e, OSError) or i == len(found) - 1:
                    raise
            else:
                return LivenessConnection(sock, on_end)
    raise ConnectionRefusedError(f"{address[0]} has no address")


async def _resolve(loop: asyncio.AbstractEventLoop, address: tuple[str, int]) -> list[Any]:
    try:
        return socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name, whose lookup may take a while
        return await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", _PROBE_AFTER), ("TCP_KEEPINTVL", _PROBE_EVERY), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
