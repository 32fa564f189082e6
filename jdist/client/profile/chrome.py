"""Chrome: the profiles of all ranks as one trace, which Perfetto and chrome://tracing open. Pure.

Each rank is a process there. Times are microseconds since the run's start, by one clock. The operators' arguments are
omitted and, if the text would be larger than `MOST_BYTES`, so are the shortest operators.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jdist.client.profile.operators import RankOperators
from jdist.client.profile.report import ProfileReport
from jdist.client.trace.timeline import Bar, lanes

MOST_BYTES = 200_000_000
_OF_CALLS = 60_000_000  # Bytes of them that calls may take.
_CALL, _OPERATOR = 500, 85  # Bytes of one, at most; of an operator, without its name.
_LONGEST_NAME = 100
_KINDS = ("operator", "scope", "collective", "kernel")
_STEPS, _CALLS, _THREADS = 1, 10, 100  # Thread numbers; calls that overlap are on further ones.
_MOST_LANES = 64

Event = dict[str, Any]


def chrome(report: ProfileReport) -> Iterator[str]:
    """Yield the JSON text in pieces."""
    left_out = 0
    bars = sorted((bar for row in report.trace.timeline.rows for bar in row.bars), key=lambda b: b.began - b.ended)
    room = MOST_BYTES - _CALL * min(len(bars), _OF_CALLS // _CALL)
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    first = True
    for event in _of_calls(report, bars[: _OF_CALLS // _CALL]):
        yield ("" if first else ",\n") + json.dumps(event, separators=(",", ":"))
        first = False
    least = _least(report, room)
    for rank, operators in sorted(report.ranks.items()):
        kept = np.nonzero(operators.ends - operators.starts >= least)[0]
        left_out += len(operators.starts) - len(kept)
        yield from _of_operators(rank, operators, kept, is_first=first)
        first = first and not len(kept)
    notes = [*report.notes]
    if left_out:
        notes.append(f"{left_out:,} operators shorter than {least * 1e6:.1f} µs were omitted from this file")
    if len(bars) > _OF_CALLS // _CALL:
        notes.append(f"{len(bars) - _OF_CALLS // _CALL:,} of the shortest calls were omitted from this file")
    other = {"run": report.trace.timeline.run, "began": report.trace.timeline.began, "notes": notes}
    yield f'\n],"otherData":{json.dumps(other)}}}\n'


def _least(report: ProfileReport, room: int) -> float:
    """The minimum duration of the operators that fit, in seconds; 0 if all of them fit."""
    sizes, lengths = [], []
    for operators in report.ranks.values():
        names = np.array([len(_name(n)) for n in operators.profile.names] or [0])
        sizes.append(names[operators.name] + _OPERATOR if len(operators.name) else np.zeros(0, int))
        lengths.append(operators.ends - operators.starts)
    if sum(int(s.sum()) for s in sizes) <= room:
        return 0.0
    size, length = np.concatenate(sizes), np.concatenate(lengths)
    order = np.argsort(-length, kind="stable")
    fits = int(np.searchsorted(np.cumsum(size[order]), room, side="right"))
    return float(np.nextafter(length[order][min(fits, len(order) - 1)], np.inf))


def _of_calls(report: ProfileReport, bars: list[Bar]) -> Iterator[Event]:
    trace = report.trace
    wanted = set(map(id, bars))
    for row in trace.timeline.rows:
        pid = row.rank
        yield from _titled("process", pid, 0, f"rank {pid} (node {trace.places.get(pid, '?')})", pid)
        yield from _titled("thread", pid, _CALLS, "torch.distributed", 1)
        args = {"rank": pid, "run": trace.timeline.run}
        yield _span("cell", "cell", pid, _CALLS - 1, row.began, row.ended, args)
        yield from _titled("thread", pid, _CALLS - 1, f"run {trace.timeline.run}", 0)
        operators = report.ranks.get(pid)
        if operators is not None:
            yield from _of_steps(operators, row.began)
            for i, thread in enumerate(operators.profile.threads):
                yield from _titled("thread", pid, _THREADS + i, thread, _THREADS + i)
        for number, lane in enumerate(lanes([bar for bar in row.bars if id(bar) in wanted])):
            tid = _CALLS + min(number, _MOST_LANES)
            if number:
                yield from _titled("thread", pid, tid, f"torch.distributed, overlapping {number}", 1 + number)
            for bar in lane:
                call = bar.call
                about = {"group": trace.label(call.group), "number": call.number, "line": call.line, "peer": call.peer}
                about |= {"shape": str(call.shapes[:2]), "waited_s": round(bar.waited, 9)}
                yield _span(call.op, "call", pid, tid, bar.began, bar.ended, {k: v for k, v in about.items() if v})
                if bar.work > bar.began:
                    for_ = [r for r, _ in sorted(bar.charged, key=lambda c: -c[1])[:4]]
                    yield _span("waiting", "waiting", pid, tid, bar.began, bar.work, {"for": for_})


def _of_steps(operators: RankOperators, began: float) -> Iterator[Event]:
    yield from _titled("thread", operators.rank, _STEPS, "steps", 0)
    before = began
    for number, end in enumerate(operators.steps.tolist()):
        yield _span(f"step {number}", "step", operators.rank, _STEPS, before, end, {})
        before = end


def _of_operators(rank: int, operators: RankOperators, kept: Iterable[int], *, is_first: bool) -> Iterator[str]:
    heads = [f'{{"ph":"X","pid":{rank},"name":{json.dumps(_name(n))},"cat":' for n in operators.profile.names]
    kinds = [f'"{kind}","tid":' for kind in _KINDS]
    chosen = np.asarray(kept)
    starts = np.round(operators.starts[chosen] * 1e6, 3)
    lengths = np.round(operators.ends[chosen] * 1e6, 3) - starts
    columns = (operators.name[chosen], operators.kind[chosen], operators.thread[chosen], starts, lengths)
    lines = [
        f'{heads[name]}{kinds[kind]}{_THREADS + thread},"ts":{start:.3f},"dur":{length:.3f}}}'
        for name, kind, thread, start, length in zip(*(c.tolist() for c in columns), strict=True)
    ]
    if lines:
        yield ("" if is_first else ",\n") + ",\n".join(lines)


def _name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _span(name: str, category: str, pid: int, tid: int, began: float, ended: float, args: Event) -> Event:
    start, end = round(began * 1e6, 3), round(ended * 1e6, 3)
    times = {"ts": start, "dur": max(0.0, round(end - start, 3))}
    return {"name": name, "cat": category, "ph": "X", "pid": pid, "tid": tid, **times, "args": args}


def _titled(kind: str, pid: int, tid: int, name: str, index: int) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{kind}_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": tid, "name": f"{kind}_sort_index", "args": {"sort_index": index}}
