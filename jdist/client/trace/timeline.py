"""Timeline: a run's calls by rank on one clock, and the waiting that ranks suffered and caused. Pure.

A rank waits in a call until the last rank that the operation needs (:func:`match_calls.awaited`) has entered, and no
longer than the call lasts. Waiting in several calls at once (asynchronous ones) counts once. Each moment is charged in
equal shares to the ranks that had not come yet, so the sum of what was caused is the sum of what was suffered.

Where the end of a call was not seen (asynchronous calls, DDP's own), the rank is taken to wait in it until the last one
has entered or its own next call began: an estimate, and marked so.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from jdist.client.trace.clocks import Clocks, Hosts
from jdist.client.trace.match_calls import Meeting, Traces, awaited
from jdist.core.observation import Call


class Bar(Struct, frozen=True):
    """One call on its rank's row. Times are seconds since the run's start."""

    rank: int
    call: Call
    meeting: int  # The same for all calls that belong together.
    began: float
    came: float  # When the last rank that it needs had entered; `began` if all had before, inf if one never did.
    ended: float  # Its end; for an open one, the moment until which it is drawn: when the last rank had entered.
    is_open: bool  # Its end was not seen, or has not been yet.
    waited: float  # Seconds that count as waiting.
    charged: tuple[tuple[int, float], ...] = ()  # `(rank, seconds)` of the ranks that caused it.
    missing: tuple[int, ...] = ()  # Ranks that never entered.

    @property
    def is_estimate(self) -> bool:
        """Its end was not seen, so how long it waited is not known either."""
        return self.is_open and self.call.is_done

    @property
    def work(self) -> float:
        """The moment from which it works; before that it waits."""
        return min(max(self.began, self.came), self.ended)


class Row(Struct, frozen=True):
    """One rank's part in the run."""

    rank: int
    bars: tuple[Bar, ...]
    began: float
    ended: float  # The end of the cell; for an unfinished one, the moment of the answer.
    is_running: bool
    left_out: int
    inside: float  # Seconds in calls, those that overlap counted once.
    suffered: float
    estimated: float  # The part of `suffered` that is an estimate.


class Timeline(Struct, frozen=True):
    """A run."""

    run: int
    rows: tuple[Row, ...]
    span: float  # Seconds from the first rank's start to the last one's end.
    began: float  # Wall clock of the first host, seconds since the epoch.
    caused: dict[int, float]
    clocks: Clocks
    shifts: dict[int, float] = {}  # By rank: what its wall clock's time takes to become seconds since the run's start.

    @property
    def bars(self) -> Iterator[Bar]:
        """The bars of all rows."""
        return (bar for row in self.rows for bar in row.bars)

    @property
    def suffered(self) -> dict[int, float]:
        """Seconds by rank."""
        return {row.rank: row.suffered for row in self.rows}


def timeline(traced: Traces, meetings: Sequence[Meeting], hosts: Hosts, clocks: Clocks) -> Timeline:
    """The timeline of what ranks answered."""
    offset = {r: clocks.offsets[hosts[r]] for r in traced}
    zero = min((t.began - offset[r] for r, t in traced.items()), default=0.0)
    shift = {r: -offset[r] - zero for r in traced}
    entries = [{r: traced[r].calls[i].started + shift[r] for r, i in meeting.calls.items()} for meeting in meetings]
    part = {(r, i): m for m, meeting in enumerate(meetings) for r, i in meeting.calls.items()}
    rows = []
    for rank, trace in sorted(traced.items()):
        parts = [(n, meetings[n], entries[n]) for n in (part[rank, i] for i in range(len(trace.calls)))]
        over = (trace.now if trace.ended is None else trace.ended) + shift[rank]
        bars = _bars(rank, trace.calls, shift[rank], over, parts)
        row = Row(
            rank=rank,
            bars=bars,
            began=trace.began + shift[rank],
            ended=max([over, *(b.ended for b in bars)]),
            is_running=trace.ended is None,
            left_out=trace.left_out,
            inside=_union(bars),
            suffered=sum(b.waited for b in bars),
            estimated=sum(b.waited for b in bars if b.is_estimate),
        )
        rows.append(row)
    caused = dict.fromkeys(sorted(traced), 0.0)
    for rank, seconds in (share for row in rows for bar in row.bars for share in bar.charged):
        caused[rank] = caused.get(rank, 0.0) + seconds
    span = max((row.ended for row in rows), default=0.0)
    run = max((t.run for t in traced.values()), default=0)
    return Timeline(run, tuple(rows), span, zero, caused, clocks, shift)


def _bars(
    rank: int, calls: Sequence[Call], shift: float, over: float, parts: Sequence[tuple[int, Meeting, dict[int, float]]]
) -> tuple[Bar, ...]:
    """``parts``: of each call its meeting, that one's number, and when ranks entered it. ``over``: the cell's end."""
    bars = []
    counted = -math.inf  # the moment up to which the rank's waiting has been counted
    starts = [call.started + shift for call in calls]
    nexts = [*starts, over][1:]
    for call, began, following, (number, meeting, entries) in zip(calls, starts, nexts, parts, strict=True):
        is_open = call.ended is None
        is_unseen = is_open and call.is_done
        own_end = max(began, over if call.ended is None else call.ended + shift)
        needed = {r: entries.get(r, math.inf) for r in awaited(call, rank, meeting)}
        came = max([began, *needed.values()])
        if "send" in call.op and (is_open or (call.is_done and came > own_end)):
            came, needed = began, {}  # the backend took it over, and it needed no other rank
        start = max(began, counted)
        until = min(came, own_end, max(began, following)) if is_unseen else min(came, own_end)
        counted = max(counted, until)
        bar = Bar(
            rank=rank,
            call=call,
            meeting=number,
            began=began,
            came=came,
            ended=min(came, own_end) if is_unseen else own_end,
            is_open=is_open,
            waited=max(0.0, until - start),
            charged=_shares(start, until, needed) if until > start else (),
            missing=tuple(sorted(meeting.missing & needed.keys())),
        )
        bars.append(bar)
    return tuple(bars)


def _shares(start: float, until: float, needed: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Charge each moment between ``start`` and ``until`` in equal shares to the ranks that had not come yet."""
    late = sorted((entry, rank) for rank, entry in needed.items() if entry > start)
    shares, share, moment = [], 0.0, start
    for i, (entry, rank) in enumerate(late):
        step = min(entry, until) - moment
        if step > 0:
            share += step / (len(late) - i)
            moment += step
        shares.append((rank, share))
    return tuple(shares)


def _union(bars: Sequence[Bar]) -> float:
    total, upto = 0.0, -math.inf
    for bar in sorted(bars, key=lambda b: b.began):
        total += max(0.0, bar.ended - max(bar.began, upto))
        upto = max(upto, bar.ended)
    return total


def lanes(bars: Sequence[Bar]) -> list[list[Bar]]:
    """The bars in the fewest lanes without overlaps; blocking calls all fit into one."""
    found: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda b: (b.began, -b.ended)):
        free = next((lane for lane in found if lane[-1].ended <= bar.began), None)
        if free is None:
            found.append([bar])
        else:
            free.append(bar)
    return found
