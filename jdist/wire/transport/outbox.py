"""Outbox: messages for one peer that are sent in the same turn of the event loop leave together, as one payload.

A message costs the network layer, and whoever receives it, far more than its bytes do. Many come at once: the ends of a
node's ranks, or of a thousand ranks on their way to a client. None waits
longer than the callbacks that are due already.
"""

import asyncio
from collections.abc import Callable

from jdist.wire.values.frames import join

_MOST_BYTES = 1 << 20  # Bytes that are gathered; a larger message travels alone.


class Outbox:
    """Gathers encoded messages; ``send`` is called with each payload."""

    def __init__(self, send: Callable[[bytes], object]):
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._nbytes = 0

    def add(self, data: bytes) -> None:
        """Send a message with the others of this turn, in order."""
        if self._nbytes + len(data) > _MOST_BYTES:
            self.flush()
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)
        self._nbytes += len(data)

    def flush(self) -> None:
        """Send what has been gathered, now."""
        waiting = self._waiting
        self.clear()
        if waiting:
            self._send(join(waiting))

    def clear(self) -> None:
        """Forget what has been gathered: it is void."""
        self._waiting, self._nbytes = [], 0
