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

``operators`` of a profiled run has the longest operators of main threads: their ``names``, the ``counts`` of them by
row, and columns: ``began`` and ``ended``, uint32 in ticks, ``name``, uint32, and ``depth``, uint8: how many others each
is nested in. Each row is sorted by start.
"""

import base64
import math
import re
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jdist.client.measure.report import TraceReport
from jdist.client.measure.timeline import Bar
from jdist.core.messages.observation import Call
from jdist.core.ranks import describe_ranks

if TYPE_CHECKING:
    from jdist.client.measure.shares import RankOperators

MIME = "application/vnd.jdist.trace.v1+json"
VERSION = 1
_TICKS = 2**31
_MOST_ENTRIES = 2**16 - 1
_FINEST = 1e-9
_MOST_OPERATORS = 20_000  # Of all ranks.
_DEEPEST = 3  # Levels of operators that are drawn.

_Entry = TypeVar("_Entry")


def columns(report: TraceReport, cluster: str = "", cluster_id: str = "") -> dict[str, Any]:
    """The timeline for JSON. ``cluster`` is the cluster's name, ``cluster_id`` tells it from others of that name."""
    t = report.timeline
    bars = [bar for row in t.rows for bar in sorted(row.bars, key=lambda b: b.began)]
    tick = max(max((b.ended for b in bars), default=0.0), t.span, _FINEST) / _TICKS
    groups = report.groups
    kinds: dict[tuple[str, int, str, int, int | None], int] = {}
    whom = {"": 0}

    def ticks(times: Iterable[float]) -> str:
        return _packed("I", (min(max(0, round(seconds / tick)), 2**32 - 1) for seconds in times))

    found = {
        "began": ticks(b.began for b in bars),
        "work": ticks(b.work for b in bars),
        "ended": ticks(b.ended for b in bars),
        "waited": ticks(b.waited for b in bars),
        "kind": _packed("H", (_place(kinds, _kind(b.call, groups), ("…", 0, "", 0, None)) for b in bars)),
        "number": _packed("I", (max(0, b.call.number) for b in bars)),
        "whom": _packed("H", (_place(whom, _whom(report, b), "for others") for b in bars)),
        "last": _packed("i", (max(b.charged, key=lambda c: c[1])[0] if b.charged else -1 for b in bars)),
        "meeting": _packed("I", (b.meeting for b in bars)),
        "flags": _packed("B", (b.is_open | b.is_estimate << 1 for b in bars)),
    }
    return {
        "version": VERSION,
        "cluster": cluster,
        "cluster_id": cluster_id,
        "run": t.run,
        "headline": report.headline,
        "finding": report.finding,
        "notes": report.notes,
        "span": t.span,
        "tick": tick,
        "groups": [report.label(group) for group in groups],
        "kinds": [dict(zip(("op", "group", "detail", "bytes", "line"), kind, strict=True)) for kind in kinds],
        "whom": list(whom),
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
        "columns": found,
    }


def operator_columns(ranks: Sequence["RankOperators | None"], tick: float) -> dict[str, Any]:
    """The longest operators on the first levels of the ranks' main threads, by row."""
    import numpy as np  # only here: traces do without it

    known = [operators for operators in ranks if operators is not None]
    shallow = {o.rank: np.nonzero(o.depths < _DEEPEST)[0] for o in known}
    lengths = {o.rank: (o.ends - o.starts)[o.on_main[shallow[o.rank]]] for o in known}
    everything = np.concatenate([np.zeros(0), *lengths.values()])
    least = np.sort(everything)[-_MOST_OPERATORS] if len(everything) > _MOST_OPERATORS else 0.0
    chosen = {rank: at[lengths[rank] >= least] for rank, at in shallow.items()}
    which = {o.rank: o.on_main[chosen[o.rank]] for o in known}
    names: dict[str, int] = {}

    used = (o.profile.names[i] for o in known for i in o.name[which[o.rank]].tolist())

    def ticks(times: list[Any]) -> str:
        return _packed("I", (min(max(0, round(each / tick)), 2**32 - 1) for some in times for each in some.tolist()))

    found = {
        "began": ticks([o.starts[which[o.rank]] for o in known]),
        "ended": ticks([o.ends[which[o.rank]] for o in known]),
        "name": _packed("I", (names.setdefault(each, len(names)) for each in used)),
        "depth": _packed("B", (depth for o in known for depth in o.depths[chosen[o.rank]].tolist())),
    }
    counts = [0 if o is None else len(which[o.rank]) for o in ranks]
    left_out = sum(len(o.on_main) for o in known) - sum(counts)
    return {"names": list(names), "counts": counts, "left_out": left_out, "columns": found}


def _place(entries: dict[_Entry, int], entry: _Entry, other: _Entry) -> int:
    """The place of ``entry``, which is added; when there is no room for more, that of ``other``."""
    if entry not in entries and len(entries) >= _MOST_ENTRIES:
        entry = other
    return entries.setdefault(entry, len(entries))


def _kind(call: Call, groups: tuple[str, ...]) -> tuple[str, int, str, int, int | None]:
    detail = " ".join(filter(None, (call.direction, call.tensors, call.detail)))
    return call.op, groups.index(call.group), detail, nbytes(call), None if call.file else call.line


def nbytes(call: Call) -> int:
    """Bytes of the tensors that the call was given; 0 where they are unknown."""
    bits = [re.search(r"\d+", dtype) for dtype in call.dtypes]  # `bfloat16` has 2 bytes, `bool` 1
    widths = [int(found[0]) // 8 if found else 1 for found in bits]
    return sum(math.prod(shape) * width for shape, width in zip(call.shapes, widths, strict=False))


def _whom(report: TraceReport, bar: Bar) -> str:
    missing = f"{describe_ranks(bar.missing)} never entered it" if bar.missing else ""
    return "; ".join(filter(None, (report.waited_for(bar), missing)))


def _packed(code: str, numbers: Iterable[int]) -> str:
    """A column of numbers of an array's type ``code``."""
    column = array(code, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return base64.b64encode(zlib.compress(column.tobytes(), 6)).decode()


def _round(seconds: float) -> float:
    return float(f"{seconds:.6g}")
