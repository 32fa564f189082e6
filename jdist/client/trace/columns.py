"""Columns: a timeline for a browser to draw: ``application/vnd.jdist.trace.v1+json``. Pure.

Texts that many calls share are stored once, in ``kinds``, ``whom`` and ``groups``. The calls themselves are columns of
numbers: little-endian, deflated (zlib), in base64. Calls are in the order of rows, and in each by their start. Times
are whole ``tick`` seconds since the run's start. A front end that meets another ``version`` shows the HTML beside it.

==========  ======  ==================================================================================================
column      type    of a call
==========  ======  ==================================================================================================
began       uint32  when the rank entered it
work        uint32  when the last of those it needs had entered
ended       uint32  when the rank left it
waited      uint32  for how long that counts as waiting
kind        uint16  its entry in ``kinds``
number      uint32  its number in its group; 0 if it has none
whom        uint16  its entry in ``whom``: for whom it waited
last        int32   the rank that came last, if it was waited for; else -1
meeting     uint32  the same for all calls that belong together
flags       uint8   1: its end was not seen or has not been yet; 2: how long it waited is an estimate
==========  ======  ==================================================================================================
"""

from __future__ import annotations  # array.array has no subscripts in Python 3.11

import base64
import math
import re
import sys
import zlib
from array import array
from typing import Any

from jdist.client.trace.report import TraceReport, peer_text, tensors_text
from jdist.client.trace.timeline import Bar
from jdist.core.observation import Call
from jdist.core.ranks import describe_ranks

MIME = "application/vnd.jdist.trace.v1+json"
VERSION = 1
_TYPES = {
    "began": "I",
    "work": "I",
    "ended": "I",
    "waited": "I",
    "kind": "H",
    "number": "I",
    "whom": "H",
    "last": "i",
    "meeting": "I",
    "flags": "B",
}
_TICKS = 2**31
_MOST_WORDS = 2**16 - 1
_FINEST = 1e-9


class _Words:
    """Texts, each stored once; when there is no room for more, a last one stands for all others."""

    def __init__(self, *first: Any):
        self.entries: list[Any] = list(first)
        self._places = {entry: i for i, entry in enumerate(first)}

    def place(self, entry: Any, other: Any) -> int:
        at = self._places.get(entry)
        if at is None:
            if len(self.entries) >= _MOST_WORDS:
                entry = other
                at = self._places.get(entry)
            if at is None:
                at = self._places[entry] = len(self.entries)
                self.entries.append(entry)
        return at


def columns(report: TraceReport, cluster: str = "") -> dict[str, Any]:
    """The timeline for JSON. ``cluster`` is the cluster's name."""
    t = report.timeline
    tick = max(max((b.ended for row in t.rows for b in row.bars), default=0.0), t.span, _FINEST) / _TICKS
    groups = report.groups
    kinds, whom = _Words(), _Words("")
    held = {name: array(code) for name, code in _TYPES.items()}
    for row in t.rows:
        for bar in sorted(row.bars, key=lambda b: b.began):
            _add(held, bar, tick)
            held["kind"].append(kinds.place(_kind(bar, groups), ("…", 0, "", 0, None)))
            held["whom"].append(whom.place(_whom(report, bar), "for others"))
    return {
        "version": VERSION,
        "cluster": cluster,
        "run": t.run,
        "headline": report.headline,
        "finding": report.finding,
        "notes": report.notes,
        "span": t.span,
        "tick": tick,
        "groups": [report.label(group) for group in groups],
        "kinds": [
            {"op": op, "group": group, "detail": detail, "bytes": size, "line": line}
            for op, group, detail, size, line in kinds.entries
        ],
        "whom": whom.entries,
        "rows": [
            {
                "rank": row.rank,
                "node": report.places.get(row.rank, ""),
                "calls": len(row.bars),
                "began": _round(row.began),
                "ended": _round(row.ended),
                "is_running": row.is_running,
                "left_out": row.left_out,
                "suffered": _round(row.suffered),
                "caused": _round(t.caused.get(row.rank, 0.0)),
            }
            for row in t.rows
        ],
        "absent": {str(rank): reason for rank, reason in report.absent.items()},
        "columns": {name: _packed(column) for name, column in held.items()},
    }


def _add(held: dict[str, array[int]], bar: Bar, tick: float) -> None:
    for name, seconds in (("began", bar.began), ("work", bar.work), ("ended", bar.ended), ("waited", bar.waited)):
        held[name].append(min(max(0, round(seconds / tick)), 2**32 - 1))
    held["number"].append(max(0, bar.call.number))
    held["last"].append(max(bar.charged, key=lambda c: c[1])[0] if bar.charged else -1)
    held["meeting"].append(bar.meeting)
    held["flags"].append((1 if bar.is_open else 0) | (2 if bar.is_estimate else 0))


def _kind(bar: Bar, groups: tuple[str, ...]) -> tuple[str, int, str, int, int | None]:
    call = bar.call
    detail = " ".join(filter(None, (tensors_text(call), call.detail)))
    if call.peer is not None:
        detail = f"{peer_text(call)} {detail}".rstrip()
    return call.op, groups.index(call.group), detail, nbytes(call), call.line


def nbytes(call: Call) -> int:
    """Bytes of the tensors that the call was given; 0 where they are unknown."""
    return sum(math.prod(shape) * _width(dtype) for shape, dtype in zip(call.shapes, call.dtypes, strict=False))


def _width(dtype: str) -> int:
    """Bytes of an element: ``bfloat16`` has 2."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1


def _whom(report: TraceReport, bar: Bar) -> str:
    words = report.waited_for(bar)
    if bar.missing:
        words = f"{words}; {describe_ranks(bar.missing)} never entered it".removeprefix("; ")
    return words


def _packed(column: array[int]) -> str:
    if sys.byteorder == "big":
        column.byteswap()
    return base64.b64encode(zlib.compress(column.tobytes(), 6)).decode()


def _round(seconds: float) -> float:
    return float(f"{seconds:.6g}")
