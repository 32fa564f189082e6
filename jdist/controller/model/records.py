"""Records: what each of the newest runs has written and how it ended, kept for clients that come later. Pure.

A browser's page that was closed or loaded again while a run went on has missed the end of its output; so has a notebook
whose kernel has died. Of a run that writes much, the oldest output is dropped; of many runs, the oldest ones are.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import cast, get_args

import msgspec

from jdist.core.messages.base import Message
from jdist.core.messages.records import Recorded
from jdist.core.messages.runs import Display, MetricsLogged, Output, OutputItem, RankDone, RunEnded, Tail, Text
from jdist.core.messages.status import Notice

MOST_IN_RUN = 4 << 20  # Bytes of output that are kept of one run, as far as they can be estimated cheaply.
MOST = 64 << 20  # Bytes of all runs together.
_SMALL = 200  # Bytes that a message takes besides its texts.
_KINDS = get_args(Recorded)


@dataclass
class _RunLog:
    """What is kept of one run. Snapshots of the end of a capped stream replace one another."""

    ranks: tuple[int, ...]
    timeout: float | None
    # Position, message and its size in bytes.
    output: deque[tuple[int, Output | MetricsLogged, int]] = field(default_factory=deque)
    others: list[tuple[int, Recorded]] = field(default_factory=list)
    tails: dict[tuple[int, str], tuple[int, Tail]] = field(default_factory=dict)
    count: int = 0  # Messages so far.
    size: int = 0  # Bytes of `output`.
    fixed: int = 0  # Bytes of the others.
    dropped: int = 0  # Messages of output that are not kept any more.
    is_over: bool = False


class RunRecords:
    """The records of the newest runs, by number."""

    def __init__(self, most: int = MOST, most_in_run: int = MOST_IN_RUN) -> None:
        self._most = most
        self._most_in_run = most_in_run
        self._records: OrderedDict[int, _RunLog] = OrderedDict()
        self._size = 0

    @property
    def newest(self) -> int:
        """The number of the newest run that is known; 0: none is."""
        return next(reversed(self._records), 0)

    def begin(self, run: int, ranks: tuple[int, ...], timeout: float | None) -> None:
        """Keep a record of this run from now on."""
        self._records[run] = _RunLog(ranks, timeout)

    def add(self, run: int, message: Message) -> None:
        """Record what a client of the run is told."""
        record = self._records.get(run)
        if record is None or not isinstance(message, _KINDS):
            return
        before = record.size + record.fixed
        record.count += 1
        match message:
            case Output():
                self._add_output(record, message)
            case MetricsLogged():
                self._push(record, message, sum(_SMALL + 3 * len(each.steps) for each in message.points))
            case RankDone():
                self._add_end(record, message)
            case _:
                record.is_over = isinstance(message, RunEnded)
                record.others.append((record.count, cast(Recorded, message)))
                record.fixed += _SMALL
        self._size += record.size + record.fixed - before
        self._drop_oldest()

    def _add_end(self, record: _RunLog, message: RankDone) -> None:
        """Without the value; where very many ranks have failed, the last ones' tracebacks are left out, too."""
        error = message.error
        if error is not None and record.fixed > self._most_in_run:
            error = msgspec.structs.replace(error, traceback=error.traceback[-1:])
        record.others.append((record.count, msgspec.structs.replace(message, payload=None, held="", error=error)))
        record.fixed += _SMALL + (0 if error is None else sum(map(len, error.traceback)) + len(error.evalue))

    def _add_output(self, record: _RunLog, message: Output) -> None:
        for item in message.items:
            if isinstance(item, Tail):
                record.tails[item.rank, item.stream] = record.count, item
        items = tuple(item for item in message.items if not isinstance(item, Tail))
        if items:
            self._push(record, msgspec.structs.replace(message, items=items), sum(map(_size, items)))

    def _push(self, record: _RunLog, message: Output | MetricsLogged, size: int) -> None:
        """Add a message of ``size`` bytes, and drop the oldest ones if there is too much."""
        record.output.append((record.count, message, size))
        record.size += size
        while record.size > self._most_in_run and len(record.output) > 1:
            _, _, size = record.output.popleft()
            record.size -= size
            record.dropped += 1

    def _drop_oldest(self) -> None:
        """Forget the oldest runs that are over while all together take too much."""
        while self._size > self._most:
            oldest = next((number for number, record in self._records.items() if record.is_over), None)
            if oldest is None:
                return
            gone = self._records.pop(oldest)
            self._size -= gone.size + gone.fixed

    def find(self, run: int) -> tuple[tuple[int, ...], float | None, tuple[Recorded, ...]] | None:
        """The run's ranks, its timeout, and what its clients were told, in order; None if it is not known any more."""
        record = self._records.get(run)
        if record is None:
            return None
        found: list[tuple[int, Recorded]] = [(at, message) for at, message, _ in record.output]
        found += record.others
        found += [(at, Output(run, (tail,))) for at, tail in record.tails.values()]
        found.sort(key=lambda each: each[0])
        left_out = [Notice("the beginning of this run's output is not kept any more", run)] if record.dropped else []
        return record.ranks, record.timeout, (*left_out, *(message for _, message in found))


def _size(item: OutputItem) -> int:
    match item:
        case Text():
            return _SMALL + len(item.text)
        case Display():
            return _SMALL + sum(len(each) if isinstance(each, str | bytes) else _SMALL for each in item.data.values())
    return _SMALL
