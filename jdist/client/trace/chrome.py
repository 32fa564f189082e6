"""Chrome: a timeline in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure.

A process per node, a thread per rank, microseconds since the run's start. Events of one thread must nest, so calls of a
rank that overlap (asynchronous ones) go to further threads of it. The part of a call that is waiting is an event inside
it, and an arrow (a flow) leads there from the call of the last rank to come.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jdist.client.trace.layout import lanes
from jdist.client.trace.report import Report, title
from jdist.client.trace.timeline import Bar, Row

_LANES = 64
"""Thread numbers of a rank; those of different ranks differ, also on different nodes."""

_NAMED = 4
"""So many of those for whom a call waited are listed with it."""
_LEAST_ARROW = 1e-3
"""Waits shorter than this part of the run get no arrow: thousands of them hide each other."""

Event = dict[str, Any]


def chrome(report: Report) -> bytes:
    """The JSON text, UTF-8."""
    t = report.timeline
    nodes = {row.rank: report.places.get(row.rank, "?") for row in t.rows}
    pids = {node: i + 1 for i, node in enumerate(dict.fromkeys(nodes.values()))}
    events: list[Event] = [
        _named("process_name", pid, 0, f"node {node}", "process_sort_index", pid)[i]
        for node, pid in pids.items()
        for i in (0, 1)
    ]
    placed: dict[tuple[int, int], tuple[int, int, Bar]] = {}
    for row in t.rows:
        events += _row(report, row, pids[nodes[row.rank]], placed)
    events += _arrows(placed, t.span * _LEAST_ARROW)
    other = {
        "run": t.run,
        "began": t.began,
        "notes": report.notes,
        "absent": {str(r): reason for r, reason in report.absent.items()},
        "caused": {str(r): s for r, s in t.caused.items()},
        "suffered": {str(r): s for r, s in t.suffered.items()},
    }
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})


def _row(report: Report, row: Row, pid: int, placed: dict[tuple[int, int], tuple[int, int, Bar]]) -> list[Event]:
    events: list[Event] = []
    for number, lane in enumerate(lanes(row.bars) or [[]]):
        tid = 1000 + row.rank * _LANES + min(number, _LANES - 1)
        name = f"rank {row.rank}" + (f", overlapping {number}" if number else "")
        events += _named("thread_name", pid, tid, name, "thread_sort_index", tid)
        if not number:
            cell = {"rank": row.rank, "run": report.timeline.run, "left_out": row.left_out}
            events.append(_span(f"run {report.timeline.run}", "cell", (pid, tid), (row.began, row.ended), cell))
        for bar in lane:
            placed[bar.meeting, row.rank] = (pid, tid, bar)
            events.append(
                _span(bar.call.op, report.label(bar.call.group), (pid, tid), (bar.began, bar.ended), _args(report, bar))
            )
            if bar.work > bar.began:
                most = sorted(bar.charged, key=lambda c: -c[1])[:_NAMED]
                waiting = {"for": {f"rank {r}": round(s, 9) for r, s in most}, "missing": list(bar.missing)}
                events.append(_span("waiting", "waiting", (pid, tid), (bar.began, bar.work), waiting))
    return events


def _args(report: Report, bar: Bar) -> dict[str, Any]:
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


def _arrows(placed: dict[tuple[int, int], tuple[int, int, Bar]], least: float) -> list[Event]:
    """From the call of the last rank to come to each call that waited for it, for ``least`` seconds or longer."""
    events: list[Event] = []
    number = 0
    for pid, tid, bar in placed.values():
        if bar.waited < least:
            continue
        last = max((r for r, _ in bar.charged), key=lambda r: _began(placed, bar.meeting, r), default=None)
        source = None if last is None else placed.get((bar.meeting, last))
        if source is None or source[2].began > bar.ended or bar.ended <= bar.began:
            continue
        number += 1
        common = {"name": title(bar.call), "cat": "waited for", "id": number}
        events.append({**common, "ph": "s", "pid": source[0], "tid": source[1], "ts": _micro(source[2].began)})
        events.append({**common, "ph": "f", "bp": "e", "pid": pid, "tid": tid, "ts": _micro(bar.work)})
    return events


def _began(placed: dict[tuple[int, int], tuple[int, int, Bar]], meeting: int, rank: int) -> float:
    found = placed.get((meeting, rank))
    return found[2].began if found else -1.0


def _span(name: str, category: str, track: tuple[int, int], times: tuple[float, float], args: Event) -> Event:
    start, end = map(_micro, times)
    pid, tid = track
    # whole nanoseconds on both sides: an event that ended a rounding later than its parent would not nest
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": max(0.0, round(end - start, 3)),
        "args": args,
    }


def _named(kind: str, pid: int, tid: int, name: str, sort: str, index: int) -> list[Event]:
    common = {"ph": "M", "pid": pid, "tid": tid}
    return [{**common, "name": kind, "args": {"name": name}}, {**common, "name": sort, "args": {"sort_index": index}}]


def _micro(value: float) -> float:
    return round(value * 1e6, 3)
