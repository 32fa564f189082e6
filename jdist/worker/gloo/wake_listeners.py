"""Knocking: freeing a rank that waits for a peer which will never connect to it.

gloo connects a new group's ranks pair by pair: of two, the one with the lower address listens, and waits without a
connection of its own, so there is nothing to cut (worker/gloo/connections). If the other rank died or was freed after
it had told its address, that wait lasts for as long as torch's timeout. gloo's listener takes a connection for the one
whose number
(its place among the listener's, 8 bytes) is read from it first: made from here, and closed, it ends the wait with
"Connection closed by peer". One that comes before its number is waited for is kept for it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Collection

from jdist.worker.gloo.connections import Endpoint

_CONNECT = 1.0


class Knocker:
    """Knocks at each of this process's own listeners once."""

    def __init__(self) -> None:
        self._done: set[Endpoint] = set()

    def knock(self, listeners: Collection[Endpoint], world_size: int) -> None:
        """In the place of every rank that may be waited for at ``listeners``, of groups that shall not be formed."""
        for listener in set(listeners) - self._done:
            self._done.add(listener)
            with contextlib.suppress(OSError):  # it has just been closed
                for number in range(world_size):
                    with socket.create_connection(listener, _CONNECT) as sock:
                        sock.sendall(struct.pack("=q", number))
