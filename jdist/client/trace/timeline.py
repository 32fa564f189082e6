"""Timeline: a run's calls by rank on one clock, and the waiting that ranks suffered and caused. Pure.

A rank waits in a call from when it enters until the last of those whom the operation needs (:func:`matching.awaited`)
has entered, and no longer than its own call lasts. Each moment of that is charged in equal shares to the ranks that had
not come yet: a single straggler is charged with all the waiting of all the others, of two stragglers each with half
while both are late, and the sum of what was caused is the sum of what was suffered. A rank that waits in several calls
at once (asynchronous ones) suffers once.

Where the end of a call was not seen (asynchronous calls, DDP's own), the rank is taken to wait in it until the last one
has entered or its own next call began: an estimate, and marked so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from jdist.client.trace.clocks import Clocks
from jdist.client.trace.match_calls import Meeting, awaited
from jdist.core.messages.observation import RankTrace
from jdist.core.observation import Call


class Bar(Struct, frozen=True):
    """One call on its rank's row. Times are seconds since the run's start."""

    rank: int
    call: Call
    meeting: int
    """The same for all calls that belong together."""
    began: float
    came: float
    """When the last of those it needs had entered; ``began`` if it found all there, inf if one never came."""
    ended: float
    """Of an open one, as long as it is drawn: until the last had entered."""
    is_open: bool
    """Its end was not seen, or has not been yet."""
    waited: float
    """Seconds that count as waiting."""
    charged: tuple[tuple[int, float], ...] = ()
    """``(rank, seconds)`` of those who caused it."""
    missing: tuple[int, ...] = ()
    """Ranks that never entered."""

    @property
    def is_estimate(self) -> bool:
        """Its end was not seen, so how long it waited is not known either."""
        return self.is_open and self.call.is_done

    @property
    def work(self) -> float:
        """From when on it works: what lies before is waiting."""
        return min(max(self.began, self.came), self.ended)


class Row(Struct, frozen=True):
    """One rank's part in the run."""

    rank: int
    bars: tuple[Bar, ...]
    began: float
    ended: float
    """Of an unfinished cell, the moment of the answer."""
    is_running: bool
    left_out: int
    inside: float
    """Seconds in calls, those that overlap counted once."""
    suffered: float
    estimated: float
    """The part of ``suffered`` that is an estimate."""


class Timeline(Struct, frozen=True):
    """A run."""

    run: int
    rows: tuple[Row, ...]
    span: float
    """Seconds from the first rank's start to the last one's end."""
    began: float
    """Wall clock of the first host, seconds since the epoch."""
    caused: dict[int, float]
    clocks: Clocks

    @property
    def suffered(self) -> dict[int, float]:
        """Seconds by rank."""
        return {row.rank: row.suffered for row in self.rows}


def timeline(
    traced: Mapping[int, RankTrace], meetings: Sequence[Meeting], hosts: Mapping[int, str], clocks: Clocks
) -> Timeline:
    """The timeline of what ranks answered; ``hosts`` by rank."""
    offset = {r: clocks.offsets[hosts[r]] for r in traced}
    zero = min((t.began - offset[r] for r, t in traced.items()), default=0.0)
    shift = {r: -offset[r] - zero for r in traced}
    entries = [{r: traced[r].calls[i].started + shift[r] for r, i in meeting.calls.items()} for meeting in meetings]
    part = {(r, i): m for m, meeting in enumerate(meetings) for r, i in meeting.calls.items()}
    rows = []
    for rank in sorted(traced):
        numbers = [part[rank, i] for i in range(len(traced[rank].calls))]
        rows.append(_row(rank, traced[rank], shift[rank], [(n, meetings[n], entries[n]) for n in numbers]))
    caused = dict.fromkeys(sorted(traced), 0.0)
    for bar in (b for row in rows for b in row.bars):
        for rank, seconds in bar.charged:
            caused[rank] = caused.get(rank, 0.0) + seconds
    span = max((row.ended for row in rows), default=0.0)
    run = max((t.run for t in traced.values()), default=0)
    return Timeline(run, tuple(rows), span, zero, caused, clocks)


def _row(rank: int, trace: RankTrace, shift: float, parts: Sequence[tuple[int, Meeting, dict[int, float]]]) -> Row:
    over = (trace.now if trace.ended is None else trace.ended) + shift
    bars, waited_to = [], -math.inf
    for i, (call, (number, meeting, entries)) in enumerate(zip(trace.calls, parts, strict=True)):
        began = call.started + shift
        following = trace.calls[i + 1].started + shift if i + 1 < len(trace.calls) else over
        bar, waited_to = _bar(_Entry(rank, call, number, began), meeting, entries, (over, following, waited_to), shift)
        bars.append(bar)
    last = max((b.ended for b in bars), default=over)
    return Row(
        rank=rank,
        bars=tuple(bars),
        began=trace.began + shift,
        ended=max(over, last),
        is_running=trace.ended is None,
        left_out=trace.left_out,
        inside=_union(bars),
        suffered=sum(b.waited for b in bars),
        estimated=sum(b.waited for b in bars if b.is_estimate),
    )


class _Entry(Struct, frozen=True):
    rank: int
    call: Call
    meeting: int
    began: float


def _bar(
    entry: _Entry, meeting: Meeting, entries: Mapping[int, float], moments: tuple[float, float, float], shift: float
) -> tuple[Bar, float]:
    """The bar, and until when the rank's waiting is counted now. ``moments``: the cell's end, the next call's start,
    and until when it was counted before.
    """
    over, following, waited_to = moments
    call, began = entry.call, entry.began
    needed = {r: entries.get(r, math.inf) for r in awaited(call, entry.rank, meeting)}
    came = max([began, *needed.values()])
    is_open = call.ended is None
    own_end = max(began, over if call.ended is None else call.ended + shift)
    if "send" in call.op and (is_open or (call.is_done and came > own_end)):
        came, needed = began, {}  # it was taken over by the backend, and needed nobody
    limit = min(own_end, max(began, following)) if is_open and call.is_done else own_end
    start, until = max(began, waited_to), min(came, limit)
    charged = _shares(start, until, needed) if until > start else ()
    never = tuple(sorted(r for r in needed if r in meeting.missing))
    end = min(came, own_end) if is_open else own_end
    if is_open and not call.is_done:
        end = own_end
    bar = Bar(
        rank=entry.rank,
        call=call,
        meeting=entry.meeting,
        began=began,
        came=came,
        ended=end,
        is_open=is_open,
        waited=max(0.0, until - start),
        charged=charged,
        missing=never,
    )
    return bar, max(waited_to, until)


def _shares(start: float, until: float, needed: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Each moment between ``start`` and ``until`` in equal shares to those who had not come yet."""
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
