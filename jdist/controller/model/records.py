"""Records: what each of the newest runs has written and how it ended, kept for clients that come later. Pure.

A browser's page that was closed or loaded again while a run went on has missed the end of its output; so has a notebook
whose kernel has died. Of a run that writes much, the oldest output is dropped; of many runs, the oldest ones are. Of
metrics, fewer points are kept the more there are.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import cast, get_args

import msgspec

from jdist.core.messages.base import Message
from jdist.core.messages.runs import (
    CommSent,
    Display,
    MetricsLogged,
    Output,
    OutputItem,
    RankDone,
    Recorded,
    RunEnded,
    RunStarted,
    Tail,
    Text,
)
from jdist.core.messages.status import Notice
from jdist.core.metrics import RunMetrics

MOST_IN_RUN = 4 << 20  # Bytes of output that are kept of one run, as far as they can be estimated cheaply.
MOST = 64 << 20  # Bytes of all runs together.
_MOST_POINTS, _LEAST_POINTS = 150_000, 20  # Of all metrics of a run, and of one; of more, fewer are kept of each.
_SMALL = 200  # Bytes that a message takes besides its texts.
_KINDS = get_args(Recorded)


@dataclass
class _KeptOutput:
    """The newest output, with its position among the run's messages and its size in bytes."""

    kept: deque[tuple[int, Output, int]] = field(default_factory=deque)
    size: int = 0
    has_dropped: bool = False

    def push(self, at: int, message: Output, size: int, most: int) -> None:
        """Add a message, and drop the oldest ones while there are more than ``most`` bytes."""
        self.kept.append((at, message, size))
        self.size += size
        while self.size > most and len(self.kept) > 1:
            self.size -= self.kept.popleft()[2]
            self.has_dropped = True


@dataclass
class _RunLog:
    """What is kept of one run. Snapshots of the end of a capped stream replace one another."""

    ranks: tuple[int, ...]
    timeout: float | None
    output: _KeptOutput = field(default_factory=_KeptOutput)
    metrics: RunMetrics | None = None
    metrics_at: int = 0  # Position of the last message of them.
    metrics_size: int = 0  # Bytes.
    others: list[tuple[int, Recorded]] = field(default_factory=list)
    tails: dict[tuple[int, str], tuple[int, Tail]] = field(default_factory=dict)
    count: int = 0  # Messages so far.
    fixed: int = 0  # Bytes of the others.
    has_missed: bool = False  # It began before it was recorded.
    is_over: bool = False

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return self.output.size + self.metrics_size + self.fixed


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

    def adopt(self, run: int, rank: int) -> None:
        """Keep a record of a run that was begun under an earlier controller, of which ``rank`` is one."""
        record = self._records.get(run)
        if record is None:
            record = self._records[run] = _RunLog((), None, has_missed=True)
            self.add(run, RunStarted(run))
        record.ranks = tuple(sorted({*record.ranks, rank}))

    def add(self, run: int, message: Message) -> None:
        """Record what a client of the run is told."""
        record = self._records.get(run)
        if record is None or not isinstance(message, _KINDS):
            return
        before = record.size
        record.count += 1
        match message:
            case Output():
                self._add_output(record, message)
            case MetricsLogged():
                record.metrics = record.metrics or RunMetrics(run, _MOST_POINTS, _LEAST_POINTS)
                record.metrics_size += record.metrics.feed(message)
                record.metrics_at = record.count
            case RankDone():
                self._add_end(record, message)
            case _:
                record.is_over = isinstance(message, RunEnded)
                record.others.append((record.count, cast(Recorded, message)))
                record.fixed += _SMALL
        self._size += record.size - before
        self._drop_oldest()

    def _add_end(self, record: _RunLog, message: RankDone) -> None:
        """Without the value; where very many ranks have failed, the last ones' tracebacks are left out, too."""
        error = message.error
        if error is not None and record.fixed > self._most_in_run:
            error = msgspec.structs.replace(error, traceback=error.traceback[-1:], installed=())
        record.others.append((record.count, msgspec.structs.replace(message, payload=None, held="", error=error)))
        record.fixed += _SMALL + (0 if error is None else sum(map(len, error.traceback)) + len(error.evalue))

    def _add_output(self, record: _RunLog, message: Output) -> None:
        for item in message.items:
            if isinstance(item, Tail):
                record.tails[item.rank, item.stream] = record.count, item
        items = tuple(item for item in message.items if not isinstance(item, Tail | CommSent))
        if items or message.number is not None:  # without the number, there would seem to be a gap
            kept = msgspec.structs.replace(message, items=items)
            record.output.push(record.count, kept, sum(map(_size, items)), self._most_in_run)

    def _drop_oldest(self) -> None:
        """Forget the oldest runs that are over while all together take too much."""
        while self._size > self._most:
            oldest = next((number for number, record in self._records.items() if record.is_over), None)
            if oldest is None:
                return
            self._size -= self._records.pop(oldest).size

    def find(self, run: int) -> tuple[tuple[int, ...], float | None, tuple[Recorded, ...]] | None:
        """The run's ranks, its timeout, and what its clients were told, in order; None if it is not known any more."""
        record = self._records.get(run)
        if record is None:
            return None
        found: list[tuple[int, Recorded]] = [(at, message) for at, message, _ in record.output.kept]
        if record.metrics is not None:
            found.append((record.metrics_at, record.metrics.message()))
        found += record.others
        found += [(at, Output(run, (tail,))) for at, tail in record.tails.values()]
        found.sort(key=lambda each: each[0])
        is_cut = record.output.has_dropped or record.has_missed
        left_out = [Notice("the beginning of this run's output is not kept any more", run)] if is_cut else []
        return record.ranks, record.timeout, (*left_out, *(message for _, message in found))


def _size(item: OutputItem) -> int:
    match item:
        case Text():
            return _SMALL + len(item.text)
        case Display():
            return _SMALL + sum(len(each) if isinstance(each, str | bytes) else _SMALL for each in item.data.values())
    return _SMALL
