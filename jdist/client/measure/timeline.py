"""Timeline: which calls of a run belong together, on one clock, and the waiting that ranks suffered and caused.

A rank waits in a call until the last rank that the operation needs (:func:`awaited`) has entered, and no longer than
the call lasts. Waiting in several calls at once (asynchronous ones) counts once. Each moment is charged in equal shares
to the ranks that had not come yet, so the sum of what was caused is the sum of what was suffered.

Where the end of a call was not seen (asynchronous calls, DDP's own), the rank is taken to wait in it until the last one
has entered or its own next call began: an estimate, and marked so.

All times are on one clock: how far nodes' wall clocks are ahead is measured by the midpoint of a round trip to each
(RFC 5905, section 8).
"""

import asyncio
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Self

from msgspec import Struct

from jdist.client.link import Link
from jdist.core.messages.nodes import ClockReading, ReadClock
from jdist.core.messages.observation import ANY, Call, RankTrace
from jdist.core.messages.status import ClusterFacts

# ---------------------------------------------------------------- clocks

_READINGS = 5
_SAME_HOST_ERROR = 2e-3  # Seconds beyond their errors by which clocks of nodes with one host name may differ.


class Clock(Struct, frozen=True):
    """A node's wall clock against the asker's: ``offset`` seconds ahead, known to within ``error`` seconds."""

    offset: float
    error: float

    @classmethod
    def measured(cls, asked: float, there: float) -> Self:
        """The clock that showed ``there`` in an answer received now to a query sent at ``asked``."""
        now = time.time()
        return cls(there - (asked + now) / 2, max(0.0, now - asked) / 2)


async def read_clocks(link: Link, places: Iterable[int], timeout: float, readings: int = _READINGS) -> dict[int, Clock]:
    """The clocks of nodes, by the places of their agents; without those that do not answer."""
    asked = tuple(places)
    found = await asyncio.gather(*(_read_clock(link, place, timeout, readings) for place in asked))
    return {place: clock for place, clock in zip(asked, found, strict=True) if clock is not None}


async def _read_clock(link: Link, place: int, timeout: float, readings: int) -> Clock | None:
    """Of several readings, the one with the shortest round trip."""
    best: Clock | None = None
    for _ in range(readings):
        asked = time.time()
        answer = (await link.query_nodes((place,), ReadClock(), timeout))[place]
        if not isinstance(answer, ClockReading):
            break
        found = Clock.measured(asked, answer.now)
        if best is None or found.error < best.error:
            best = found
    return best


class Clocks(Struct, frozen=True):
    """How far each rank's clock is ahead, in seconds; ``error`` is the largest error between two of them."""

    offsets: Mapping[int, float]
    error: float

    @classmethod
    def of_ranks(cls, ranks: Iterable[int], clocks: Mapping[int, Clock], facts: ClusterFacts) -> "Clocks":
        """The ranks' clocks, from those of their nodes by place.

        Nodes with one host name share a clock, unless their readings contradict that, as in badly named containers.
        """
        places = {rank: facts.topology.place(rank) for rank in ranks}
        used = sorted(set(places.values()))
        if len(used) < 2:
            return cls(dict.fromkeys(places, 0.0), 0.0)
        known = {place: clocks.get(place, Clock(0.0, float("inf"))) for place in used}
        best: dict[str, int] = {}  # By host, the place with the most precise clock.
        for place in sorted(used, key=lambda p: known[p].error):
            best.setdefault(facts.hostnames[place], place)
        shared = {place: best[facts.hostnames[place]] for place in used}
        if all(_may_share(known[a], known[b]) for a, b in shared.items()):
            used = sorted(best.values())
        else:
            shared = {place: place for place in used}
        errors = sorted(known[place].error for place in used)
        error = sum(errors[-2:]) if len(used) > 1 else 0.0
        return cls({rank: known[shared[place]].offset for rank, place in places.items()}, error)


def _may_share(a: Clock, b: Clock) -> bool:
    return abs(a.offset - b.offset) <= a.error + b.error + _SAME_HOST_ERROR


Traces = Mapping[int, RankTrace]  # The answers of the ranks that had a part in the run.
Members = Mapping[str, Iterable[int]]  # The ranks of each group, by torch's name, as far as known.
# ---------------------------------------------------------------- meetings

_ROOT = re.compile(r"\b(src|dst)=(\d+)\b")


# ---------------------------------------------------------------- which calls belong together


@dataclass
class Meeting:
    """One collective, or one message from a rank to another."""

    calls: dict[int, int] = field(default_factory=dict)  # `{rank: index of the call among the rank's calls}`.
    missing: frozenset[int] = frozenset()  # Ranks that should have entered it and are known not to have.
    is_message: bool = False


def awaited(call: Call, rank: int, meeting: Meeting) -> frozenset[int]:
    """The ranks without which the operation cannot end on ``rank``.

    A broadcast or scatter (``src=`` in its detail) needs the source, which needs none. The destination of a reduce or
    gather (``dst=``) needs all the others, which need none. Every other collective needs every rank, and a recv its
    send. A send may need its recv or not, which only its end shows.
    """
    others = (frozenset(meeting.calls) | meeting.missing) - {rank}
    root = None if meeting.is_message else _ROOT.search(call.detail)
    if root is None:
        return others
    at = int(root[2])
    return others & {at} if root[1] == "src" else others if rank == at else frozenset()


def match(traced: Traces, members: Members, elsewhere: Iterable[int] = ()) -> list[Meeting]:
    """Every collective and message of a run, each call in exactly one. ``elsewhere``: ranks that took no part in it."""
    idle = frozenset(elsewhere)
    found: dict[tuple[str, int, int], Meeting] = defaultdict(Meeting)
    seen: dict[str, set[int]] = {name: set(ranks) for name, ranks in members.items()}
    last: dict[tuple[str, int], int] = {}
    alone: list[Meeting] = []
    for rank, trace in traced.items():
        times: Counter[tuple[str, int]] = Counter()
        for i, call in enumerate(trace.calls):
            if call.peer is not None:
                continue
            if not call.number:
                alone.append(Meeting({rank: i}))  # without its number, the calls that it belongs to are unknown
                continue
            key = (call.group, call.number)  # a group that is made again counts from 1 again
            found[(*key, times[key])].calls[rank] = i
            times[key] += 1
            seen.setdefault(call.group, set()).add(rank)
            last[call.group, rank] = max(call.number, last.get((call.group, rank), 0))
    for (group, number, _), meeting in found.items():
        began = min(traced[r].calls[i].started for r, i in meeting.calls.items())
        absent = seen[group] - meeting.calls.keys()
        passed = {r for r in absent if r in traced and number > last.get((group, r), 0) and _is_kept(traced[r], began)}
        meeting.missing = frozenset(passed | (absent & idle))
    return [*found.values(), *alone, *_messages(traced)]


def _is_kept(trace: RankTrace, moment: float) -> bool:
    """Whether a call of that moment would still be among the calls."""
    return not trace.left_out or bool(trace.calls and trace.calls[0].started <= moment)


def _messages(traced: Traces) -> list[Meeting]:
    """The n-th send from one rank to another with a tag meets the n-th recv there: gloo and NCCL keep that order.

    They are counted from the newest if older ones were left out. A recv from any rank takes the oldest send: a guess.
    """
    sends: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    recvs: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    for rank, trace in traced.items():
        for i, call in enumerate(trace.calls):
            if call.peer is not None and "recv" in call.op:
                recvs[call.group, call.peer, rank, call.tag].append(i)
            elif call.peer is not None:
                sends[call.group, rank, call.peer, call.tag].append(i)
    found: list[Meeting] = []
    free: dict[tuple[str, int, int], list[tuple[float, int, int]]] = defaultdict(list)
    for key in {**sends, **recvs}:
        group, source, target, tag = key
        if source == ANY:
            continue
        out, into = sends[key], recvs[key]
        is_cut = any(traced[r].left_out for r in (source, target) if r in traced)
        pairs = reversed([*zip_longest(out[::-1], into[::-1])]) if is_cut else zip_longest(out, into)
        for sent, received in pairs:
            if received is None and not is_cut:
                free[group, target, tag].append((traced[source].calls[sent].started, source, sent))
                continue
            calls = {rank: i for rank, i in ((source, sent), (target, received)) if i is not None}
            missing = {source} & traced.keys() if sent is None and not is_cut else ()
            found.append(Meeting(calls, frozenset(missing), is_message=True))
    for (group, source, target, tag), into in recvs.items():
        if source == ANY:
            found += _from_anyone(target, into, free[group, target, tag])
    for (_, target, _), left in free.items():
        known = frozenset({target} & traced.keys())
        found += [Meeting({source: i}, known, is_message=True) for _, source, i in left]
    return found


def _from_anyone(target: int, into: Iterable[int], free: list[tuple[float, int, int]]) -> Iterator[Meeting]:
    """Meetings of recvs from any rank. They take sends, given as ``(start, rank, index)``, out of ``free``."""
    free.sort(reverse=True)
    for received in into:
        calls = {target: received}
        if free:
            _, source, sent = free.pop()
            calls[source] = sent
        yield Meeting(calls, is_message=True)


# ---------------------------------------------------------------- who waited for whom


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
    began: float  # Seconds since the epoch.
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


def timeline(traced: Traces, meetings: Sequence[Meeting], clocks: Clocks) -> Timeline:
    """The timeline of what ranks answered."""
    zero = min((t.began - clocks.offsets[r] for r, t in traced.items()), default=0.0)
    shift = {r: -clocks.offsets[r] - zero for r in traced}
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
