"""Chrome: a timeline in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure.

A process per node, a thread per rank, times in microseconds. Events of one thread must nest, so overlapping calls of a
rank go to further threads. Waiting is an event inside a call; an arrow (a flow) leads there from the last rank's call.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from jdist.client.trace.report import TraceReport, title
from jdist.client.trace.timeline import Bar, Row, lanes

_LANES = 64  # Thread numbers of a rank; those of different ranks differ, also on different nodes.
_NAMED = 4  # The most ranks that are listed as those for which a call waited.
_LEAST_ARROW = 1e-3  # Waits shorter than this part of the run get no arrow: thousands of them hide each other.

Event = dict[str, Any]
_Drawn = dict[tuple[int, int], tuple[Bar, Event]]  # Calls and their events, by meeting and rank.


def chrome(report: TraceReport) -> bytes:
    """The JSON text, UTF-8."""
    t = report.timeline
    nodes = {row.rank: report.places.get(row.rank, "?") for row in t.rows}
    pids = {node: i + 1 for i, node in enumerate(dict.fromkeys(nodes.values()))}
    events = [e for node, pid in pids.items() for e in _named("process", {"pid": pid, "tid": 0}, f"node {node}", pid)]
    drawn: _Drawn = {}
    for row in t.rows:
        events += _row(report, row, pids[nodes[row.rank]], drawn)
    events += _arrows(drawn, t.span * _LEAST_ARROW)
    other = {"run": t.run, "began": t.began, "notes": report.notes}
    other |= {"absent": report.absent, "caused": t.caused, "suffered": t.suffered}
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})


def _row(report: TraceReport, row: Row, pid: int, drawn: _Drawn) -> Iterator[Event]:
    run = f"run {report.timeline.run}"
    for number, lane in enumerate(lanes(row.bars) or [[]]):
        track = {"pid": pid, "tid": 1000 + row.rank * _LANES + min(number, _LANES - 1)}
        name = f"rank {row.rank}" + (f", overlapping {number}" if number else "")
        yield from _named("thread", track, name, track["tid"])
        if not number:
            cell = {"rank": row.rank, "run": report.timeline.run, "left_out": row.left_out}
            yield _span(run, "cell", track, row.began, row.ended, cell)
        for bar in lane:
            drawn[bar.meeting, row.rank] = bar, track
            yield _span(bar.call.op, report.label(bar.call.group), track, bar.began, bar.ended, _args(report, bar))
            if bar.work > bar.began:
                most = sorted(bar.charged, key=lambda c: -c[1])[:_NAMED]
                waiting = {"for": {f"rank {r}": round(s, 9) for r, s in most}, "missing": list(bar.missing)}
                yield _span("waiting", "waiting", track, bar.began, bar.work, waiting)


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


def _span(name: str, category: str, track: Event, began: float, ended: float, args: Event) -> Event:
    start, end = _micro(began), _micro(ended)
    times = {"ts": start, "dur": max(0.0, round(end - start, 3))}  # whole ns, or rounding might end it after its parent
    return {"name": name, "cat": category, "ph": "X", **track, **times, "args": args}


def _named(kind: str, track: Event, name: str, index: int) -> Iterator[Event]:
    yield {"ph": "M", **track, "name": f"{kind}_name", "args": {"name": name}}
    yield {"ph": "M", **track, "name": f"{kind}_sort_index", "args": {"sort_index": index}}


def _micro(value: float) -> float:
    return round(value * 1e6, 3)
