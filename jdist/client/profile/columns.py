"""Columns: a profile for a browser to draw: a trace with the main threads' operators. Pure.

``operators`` of ``application/vnd.jdist.trace.v1+json`` has their ``names``, the ``counts`` of them by row, and columns
like those of the calls (:mod:`jdist.client.trace.columns`): ``began`` and ``ended``, uint32 in ticks, ``name``, uint32,
and ``depth``, uint8: how many others it is nested in. Each row is sorted by start. Only the longest operators are
included.
"""

from typing import Any

import numpy as np

from jdist.client.profile.operators import RankOperators
from jdist.client.profile.report import ProfileReport
from jdist.client.trace import columns as trace_columns

_MOST = 20_000  # Operators of all ranks.
_DEEPEST = 3  # Levels that are drawn.


def columns(report: ProfileReport, cluster: str = "") -> dict[str, Any]:
    """The timeline and the operators for JSON."""
    found = trace_columns.columns(report.trace, cluster)
    found |= {"headline": report.headline, "finding": report.finding, "notes": report.notes}
    ranks = [report.ranks.get(row.rank) for row in report.trace.timeline.rows]
    chosen = _longest(ranks)
    names: dict[str, int] = {}
    began, ended, name, depth = [], [], [], []
    for operators, (which, level) in zip(ranks, chosen, strict=True):
        if operators is None:
            continue
        began.append(operators.starts[which])
        ended.append(operators.ends[which])
        depth.append(level)
        own = operators.profile.names
        name += [names.setdefault(own[i], len(names)) for i in operators.name[which].tolist()]
    tick = found["tick"]

    def packed(code: str, values: list[Any]) -> str:
        return trace_columns.packed(code, np.concatenate(values).tolist() if values else [])

    def ticks(times: list[Any]) -> str:
        return packed("I", [np.clip(np.round(t / tick), 0, 2**32 - 1).astype(np.uint32) for t in times])

    kept = sum(len(which) for which, _ in chosen)
    found["operators"] = {
        "names": list(names),
        "counts": [len(which) for which, _ in chosen],
        "left_out": sum(len(o.on_main) for o in ranks if o is not None) - kept,
        "columns": {
            "began": ticks(began),
            "ended": ticks(ended),
            "name": trace_columns.packed("I", name),
            "depth": packed("B", depth),
        },
    }
    return found


def _longest(ranks: list[RankOperators | None]) -> list[tuple[Any, Any]]:
    """By rank, indices and depths of the operators that are drawn: the longest of all ranks on the first levels."""
    nothing = np.zeros(0, int)
    candidates = []
    for operators in ranks:
        shallow = nothing if operators is None else np.nonzero(operators.depths < _DEEPEST)[0]
        candidates.append(
            (nothing, nothing) if operators is None else (operators.on_main[shallow], operators.depths[shallow])
        )
    lengths = [
        nothing if o is None else o.ends[which] - o.starts[which]
        for o, (which, _) in zip(ranks, candidates, strict=True)
    ]
    everything = np.concatenate(lengths) if lengths else nothing
    if len(everything) <= _MOST:
        return candidates
    least = np.partition(everything, len(everything) - _MOST)[len(everything) - _MOST]
    return [(w[n >= least], d[n >= least]) for (w, d), n in zip(candidates, lengths, strict=True)]
