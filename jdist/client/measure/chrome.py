"""Chrome: a run in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure.

Each rank is a process, with threads for its calls and, if the run was profiled, for its steps and its operators. Times
are microseconds since the run's start, by one clock. Events of one thread must nest, so overlapping calls of a rank go
to further threads. Waiting is an event inside a call; an arrow (a flow) leads there from the last rank's call.

The operators' arguments are omitted and, if the text would be larger than `MOST_BYTES`, so are the shortest operators.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from jdist.client.measure.report import TraceReport, title
from jdist.client.measure.shares import RankOperators
from jdist.client.measure.timeline import Bar, Row, lanes

MOST_BYTES = 200_000_000
_CALL, _OPERATOR = 800, 85  # Bytes of one, at most; of an operator, without its name.
_MOST_CALLS = 75_000  # In the file of a profile, which needs the room for operators.
_LONGEST_NAME = 100
_KINDS = ("operator", "scope", "collective", "kernel")
_STEPS, _CALLS, _OPERATORS = 1, 10, 100  # Thread numbers of a rank, which follow those of the ranks before.
_THREADS = 1000
_MOST_LANES = 64
_MOST_NAMED = 4  # The most ranks that are listed as those for which a call waited.
_LEAST_ARROW = 1e-3  # Waits shorter than this part of the run get no arrow: thousands of them hide each other.

Event = dict[str, Any]
_Drawn = dict[tuple[int, int], tuple[Bar, Event]]  # Calls and their threads, by meeting and rank.


def chrome(
    report: TraceReport, ranks: Mapping[int, RankOperators] | None = None, notes: Iterable[str] | None = None
) -> Iterator[str]:
    """Yield the JSON text in pieces; ``ranks`` and ``notes`` are those of a profile."""
    t, operators = report.timeline, ranks or {}
    bars = sorted(t.bars, key=lambda bar: bar.began - bar.ended)
    calls = bars[:_MOST_CALLS] if operators else bars
    wanted = {(bar.meeting, bar.rank) for bar in calls}
    drawn: _Drawn = {}
    events = [event for row in t.rows for event in _rank(report, row, operators.get(row.rank), wanted, drawn)]
    events += _arrows(drawn, t.span * _LEAST_ARROW)
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    yield ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    least = _least(operators, MOST_BYTES - _CALL * len(calls))
    left_out = 0
    for rank, own in sorted(operators.items()):
        kept = np.nonzero(own.ends - own.starts >= least)[0]
        left_out += len(own.starts) - len(kept)
        yield from _operators(rank, own, kept)
    told = list(report.notes if notes is None else notes)
    if left_out:
        told.append(f"{left_out:,} operators shorter than {least * 1e6:.1f} µs were omitted from this file")
    if len(calls) < len(bars):
        told.append(f"{len(bars) - len(calls):,} of the shortest calls were omitted from this file")
    other = {"run": t.run, "began": t.began, "notes": told}
    other |= {"absent": report.absent, "caused": t.caused, "suffered": t.suffered}
    yield f'\n],"otherData":{json.dumps(other)}}}\n'


def _rank(
    report: TraceReport, row: Row, operators: RankOperators | None, wanted: set[tuple[int, int]], drawn: _Drawn
) -> Iterator[Event]:
    rank = row.rank
    yield from _named("process", _thread(rank, 0), f"rank {rank} (node {report.places.get(rank, '?')})", rank)
    bars = [bar for bar in row.bars if (bar.meeting, rank) in wanted]
    for number, lane in enumerate(lanes(bars) or [[]]):
        track = _thread(rank, _CALLS + min(number, _MOST_LANES))
        name = "torch.distributed" + (f", overlapping {number}" if number else "")
        yield from _named("thread", track, name, 1 + number)
        if not number:
            about = {"rank": rank, "run": report.timeline.run, "left_out": row.left_out}
            yield _span(f"run {report.timeline.run}", "cell", track, row.began, row.ended, about)
        for bar in lane:
            drawn[bar.meeting, rank] = bar, track
            yield _span(bar.call.op, report.label(bar.call.group), track, bar.began, bar.ended, _args(report, bar))
            if bar.work > bar.began:
                most = sorted(bar.charged, key=lambda c: -c[1])[:_MOST_NAMED]
                waiting = {"for": {f"rank {r}": round(s, 9) for r, s in most}, "missing": list(bar.missing)}
                yield _span("waiting", "waiting", track, bar.began, bar.work, waiting)
    if operators is not None:
        yield from _named("thread", _thread(rank, _STEPS), "steps", 0)
        edges = [row.began, *operators.steps.tolist()]
        for number, (began, ended) in enumerate(pairwise(edges)):
            yield _span(f"step {number}", "step", _thread(rank, _STEPS), began, ended, {})
        for i, name in enumerate(operators.profile.threads):
            yield from _named("thread", _thread(rank, _OPERATORS + i), name, _OPERATORS + i)


def _args(report: TraceReport, bar: Bar) -> Event:
    call = bar.call
    found = {
        "group": report.label(call.group),
        "number": call.number or None,
        "shapes": [list(s) for s in call.shapes],
        "dtypes": list(call.dtypes),
        "detail": call.detail,
        "line": call.line,
        "peer": call.peer,
        "tag": call.tag if call.peer is not None else None,
        "waited_s": round(bar.waited, 9),
        "end": ("not seen" if call.is_done else "in flight") if bar.is_open else None,
    }
    return {k: v for k, v in found.items() if v not in (None, "", [])}


def _arrows(drawn: _Drawn, least: float) -> Iterator[Event]:
    """From the call of the last rank to come to each call that waited for it, for ``least`` seconds or longer."""
    for number, (bar, track) in enumerate(drawn.values(), 1):
        came = [drawn[bar.meeting, r] for r, _ in bar.charged if (bar.meeting, r) in drawn]
        if not came or bar.waited < least or bar.ended <= bar.began:
            continue
        last, source = max(came, key=lambda each: each[0].began)
        if last.began <= bar.ended:
            common = {"name": title(bar.call), "cat": "waited for", "id": number}
            yield {**common, **source, "ph": "s", "ts": _micro(last.began)}
            yield {**common, **track, "ph": "f", "bp": "e", "ts": _micro(bar.work)}


def _least(ranks: Mapping[int, RankOperators], room: int) -> float:
    """The minimum duration of the operators that fit, in seconds; 0 if all of them fit."""
    sizes, lengths = [np.zeros(0, int)], [np.zeros(0)]
    for operators in ranks.values():
        names = np.array([len(_name(n)) for n in operators.profile.names] or [0])
        sizes.append(names[operators.name] + _OPERATOR)
        lengths.append(operators.ends - operators.starts)
    size, length = np.concatenate(sizes), np.concatenate(lengths)
    if size.sum() <= room:
        return 0.0
    order = np.argsort(-length, kind="stable")
    fits = int(np.searchsorted(np.cumsum(size[order]), room, side="right"))
    return float(np.nextafter(length[order][min(fits, len(order) - 1)], np.inf))


def _operators(rank: int, operators: RankOperators, chosen: Any) -> Iterator[str]:
    """Text with a comma before each operator: as there may be a million, no dictionaries are made."""
    heads = [f',\n{{"ph":"X","pid":{rank},"name":{json.dumps(_name(n))},"cat":' for n in operators.profile.names]
    kinds = [f'"{kind}","tid":' for kind in _KINDS]
    first = _thread(rank, _OPERATORS)["tid"]
    starts = np.round(operators.starts[chosen] * 1e6, 3)
    lengths = np.round(operators.ends[chosen] * 1e6, 3) - starts
    columns = (operators.name[chosen], operators.kind[chosen], operators.thread[chosen], starts, lengths)
    for name, kind, thread, start, length in zip(*(c.tolist() for c in columns), strict=True):
        yield f'{heads[name]}{kinds[kind]}{first + thread},"ts":{start:.3f},"dur":{length:.3f}}}'


def _name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _thread(rank: int, number: int) -> Event:
    """A rank's process and one of its threads, whose number no other rank has."""
    return {"pid": rank, "tid": rank * _THREADS + number}


def _span(name: str, category: str, track: Event, began: float, ended: float, args: Event) -> Event:
    start, end = _micro(began), _micro(ended)
    times = {"ts": start, "dur": max(0.0, round(end - start, 3))}  # whole ns, or rounding might end it after its parent
    return {"name": name, "cat": category, "ph": "X", **track, **times, "args": args}


def _named(kind: str, track: Event, name: str, index: int) -> Iterator[Event]:
    yield {"ph": "M", **track, "name": f"{kind}_name", "args": {"name": name}}
    yield {"ph": "M", **track, "name": f"{kind}_sort_index", "args": {"sort_index": index}}


def _micro(value: float) -> float:
    return round(value * 1e6, 3)
