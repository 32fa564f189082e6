"""Backlog: what waits for a client that has not yet taken what it was sent before. Pure.

A live plot may make pictures faster than the client's link carries them. What has been handed to the stream is sent,
however old it is by then. What waits here is replaced by what comes after it: the client gets the newest picture.

The client checks by the messages' numbers that none is missing (see `OutputNumber`). So the number of a message of
which nothing is left is joined to that of the next message, or is sent alone if there is none.
"""

from bisect import bisect
from collections import defaultdict

from msgspec.structs import replace

from jdist.core.errors import Overrun
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Output, OutputItem, Tail
from jdist.core.waiting_output import WaitingOutput
from jdist.wire.values.frames import pack_report

_AT_ONCE = 1000  # Messages and items after which those that were replaced are forgotten.


class Backlog:
    """Messages in order, of at most ``limit`` bytes."""

    def __init__(self, limit: int):
        self._limit = limit
        self._clear()

    def _clear(self) -> None:
        self._arrivals = 0
        self._others: dict[float, bytes] = {}  # Encoded, by arrival.
        self._heads: dict[float, Output] = {}  # Messages of output without their items, which arrived next.
        self._output: defaultdict[tuple[int, tuple[int, ...]], WaitingOutput] = defaultdict(WaitingOutput)
        self._sizes: dict[float, int] = {}  # Of all, also of items of output that were replaced.
        self._nbytes = 0
        self._most = _AT_ONCE  # Sizes until those of replaced items are dropped.

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, message: Message) -> None:
        """Have a message wait. Raises Overrun when too much does."""
        if isinstance(message, Output):
            head = replace(message, items=())
            self._heads[self._count(pack_report(head))] = head
            for item in message.items:
                ranks = (item.rank,) if isinstance(item, Tail) else item.ranks
                arrived = self._count(pack_report(Output(message.run, (item,))))
                self._output[message.run, ranks].add(arrived, item)
        else:
            data = pack_report(message)
            self._others[self._count(data)] = data
        if self._nbytes > self._limit or len(self._sizes) > self._most:
            self._compact()
        if self._nbytes > self._limit:
            raise Overrun(f"{self._nbytes >> 20} MiB wait to be sent")

    def _count(self, data: bytes) -> int:
        """Count the bytes of what has arrived; its number."""
        self._arrivals += 1
        self._sizes[self._arrivals] = len(data)
        self._nbytes += len(data)
        return self._arrivals

    def _compact(self) -> dict[float, list[OutputItem]]:
        """Forget what was replaced; the items that are left of each message."""
        items = sorted((each for output in self._output.values() for each in output.items), key=lambda each: each[0])
        heads, left = list(self._heads), dict[float, list[OutputItem]]()
        for arrived, item in items:
            left.setdefault(heads[bisect(heads, arrived) - 1], []).append(item)
        kept: dict[float, Output] = {}
        empty: dict[tuple[int, int], float] = {}  # The message before in the same run of which nothing is left.
        for at, head in self._heads.items():
            number = head.number
            if number is not None:
                before = kept.pop(empty.pop((head.run, number.agent), -1), head).number or number
                kept[at] = replace(head, number=replace(number, previous=before.previous))
                if at not in left:
                    empty[head.run, number.agent] = at
            elif at in left:
                kept[at] = head
        self._heads = kept
        self._sizes = {at: self._sizes[at] for at in sorted((*self._others, *kept, *(at for at, _ in items)))}
        self._nbytes = sum(self._sizes.values())
        self._most = 2 * len(self._sizes) + _AT_ONCE
        return left

    def take(self) -> list[bytes]:
        """All that waits, encoded, which then waits no more."""
        left = self._compact()
        found = self._others
        found |= {at: pack_report(replace(head, items=tuple(left.get(at, ())))) for at, head in self._heads.items()}
        self._clear()
        return [data for _, data in sorted(found.items()) if data]
