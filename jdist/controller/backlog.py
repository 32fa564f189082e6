"""Backlog: what waits for a client that has not yet taken what it was sent before. Pure.

A live plot may make pictures faster than the client's link carries them. What has been handed to the stream is sent,
however old it is by then. What waits here is replaced by what comes after it: the client gets the newest picture.
"""

from collections import defaultdict

from jdist.core.errors import Overrun
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Output, Tail
from jdist.core.waiting_output import WaitingOutput
from jdist.wire.values.frames import pack_report


class Backlog:
    """Messages in order, of at most ``limit`` bytes."""

    def __init__(self, limit: int):
        self._limit = limit
        self._clear()

    def _clear(self) -> None:
        self._output: defaultdict[tuple[int, tuple[int, ...]], WaitingOutput] = defaultdict(WaitingOutput)
        self._others: dict[float, bytes] = {}  # Encoded, by arrival.
        self._sizes: dict[float, int] = {}  # Of all, also of items of output that were replaced.
        self._nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, message: Message) -> None:
        """Have a message wait. Raises Overrun when too much does."""
        if isinstance(message, Output):
            for item in message.items:
                ranks = (item.rank,) if isinstance(item, Tail) else item.ranks
                arrived = self._count(pack_report(Output(message.run, (item,))))
                self._output[message.run, ranks].add(arrived, item)
        else:
            data = pack_report(message)
            self._others[self._count(data)] = data
        if self._nbytes > self._limit:
            here = [*self._others, *(at for output in self._output.values() for at, _ in output.items)]
            self._nbytes = sum(self._sizes[at] for at in here)
        if self._nbytes > self._limit:
            raise Overrun(f"{self._nbytes >> 20} MiB wait to be sent")

    def _count(self, data: bytes) -> int:
        """Count the bytes of what has arrived; its number."""
        number = len(self._sizes)
        self._sizes[number] = len(data)
        self._nbytes += len(data)
        return number

    def take(self) -> list[bytes]:
        """All that waits, encoded, which then waits no more."""
        found = dict(self._others)
        for (run, _), output in self._output.items():
            found |= {arrived: pack_report(Output(run, (item,))) for arrived, item in output.items}
        self._clear()
        return [data for _, data in sorted(found.items()) if data]
