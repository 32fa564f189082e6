"""Liveness connections: connections with next to no traffic, whose end shows whether the peer's process has died.

When a process dies, the system closes its connections in order and at once. A connection that is reset, or on which
TCP's keep-alive probes are not answered, was broken by the network, and says nothing about the process. Nor does the
end of one whose peer goes on to answer on another: a proxy closes connections in order when nothing has passed for a
while. So that it does not, the side that has dialled writes a byte now and then.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from jdist.wire.transport.dialing import MAGIC

_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # Idle and interval in seconds.
_DIAL_TIMEOUT = 10.0
_SIGN = 3.0  # Seconds between two bytes.


class LivenessConnection(asyncio.Protocol):
    """One end of a liveness connection; when it ends, ``on_end(is_dead)`` is called on the running loop."""

    def __init__(self, on_end: Callable[[bool], None]):
        self._on_end: Callable[[bool], None] | None = on_end
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def write_signs(self) -> None:
        """Write a byte from time to time."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b".")
            self._timer = asyncio.get_running_loop().call_later(_SIGN, self.write_signs)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._on_end is not None:
            self._on_end(exc is None)

    def close(self) -> None:
        """Close it without calling ``on_end``; may be called again."""
        self._on_end = None
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def dial_liveness(address: tuple[str, int], name: str, on_end: Callable[[bool], None]) -> LivenessConnection:
    """Dial this process's liveness connection at the controller's data port. Raises OSError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_DIAL_TIMEOUT):
        transport, connection = await loop.create_connection(lambda: LivenessConnection(on_end), *address)
    transport.write(MAGIC + f" LIFE {name}\n".encode())
    connection.write_signs()
    return connection
