"""Mismatch: ranks that called different things under one number of a group. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from jdist.controller.verdict.wait_graph import Ranks
from jdist.core.call_signature import SAME_SIZE, sizes
from jdist.core.observation import Call
from jdist.core.ranks import describe_ranks

_SPLITS = re.compile(r"splits=\[([\d, ]*)\]→\[([\d, ]*)\]")


class Mismatch(Struct, frozen=True):
    """Where the calls begin to differ: the number, and who called what; the largest party first."""

    number: int
    what: str
    """"operation", "size", "dtype", "root", ..."""
    parties: tuple[tuple[tuple[int, ...], str], ...]


def find(group: str, number: int, ranks: Ranks) -> Mismatch | None:
    """How the calls of collective ``number`` differ, or of the first of the differing ones that lead up to it."""
    found = None
    while number > 0:
        here = compare(number, _calls(group, number, ranks), _members(group, ranks))
        if here is None:
            return found
        found, number = here, number - 1
    return found


def _calls(group: str, number: int, ranks: Ranks) -> dict[int, Call]:
    return {r: call for r, seen in sorted(ranks.items()) if (call := seen.call(group, number)) is not None}


def _members(group: str, ranks: Ranks) -> Sequence[int]:
    return next((p.ranks for s in ranks.values() if (p := s.progress(group)) is not None), ())


def compare(number: int, calls: Mapping[int, Call], members: Sequence[int]) -> Mismatch | None:
    """How calls under one number differ, by rank; ``members`` are the group's ranks in its own order."""
    if len(calls) < 2:
        return None
    ops = {r: c.op for r, c in calls.items()}
    if len(set(ops.values())) > 1:
        return Mismatch(number, "operation", _parties(ops, calls))
    if next(iter(ops.values())) in SAME_SIZE:
        for what, of in (("dtype", _dtypes), ("size", sizes)):
            values = {r: of(c) for r, c in calls.items() if c.shapes}
            if len(set(values.values())) > 1:
                return Mismatch(number, what, _parties(values, calls))
    return _compare_details(number, calls, members)


def _compare_details(number: int, calls: Mapping[int, Call], members: Sequence[int]) -> Mismatch | None:
    splits = {r: s for r, c in calls.items() if (s := _split_sizes(c)) is not None}
    if splits:
        for i, mine in splits.items():
            for j, theirs in splits.items():
                a, b = members.index(i), members.index(j)
                if b < len(mine[0]) and a < len(theirs[1]) and mine[0][b] != theirs[1][a]:
                    pair = {r: calls[r] for r in (i, j)}
                    return Mismatch(number, "split sizes", _parties({r: str(r) for r in pair}, pair))
        return None
    details = {r: c.detail for r, c in calls.items() if c.detail}
    if len(set(details.values())) > 1:
        names = {d.partition("=")[0] for d in details.values()}
        return Mismatch(number, "root" if names <= {"src", "dst"} else "reduction", _parties(details, calls))
    return None


def _dtypes(call: Call) -> object:
    return call.dtypes


def _split_sizes(call: Call) -> tuple[list[int], list[int]] | None:
    found = _SPLITS.search(call.detail)
    if found is None:
        return None
    given, taken = ([int(n) for n in part.split(",") if n.strip()] for part in found.groups())
    return given, taken


def _parties(values: Mapping[int, object], calls: Mapping[int, Call]) -> tuple[tuple[tuple[int, ...], str], ...]:
    by_value: dict[object, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    ordered = sorted(by_value.values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((tuple(ranks), describe(calls[ranks[0]])) for ranks in ordered)


def describe(call: Call) -> str:
    """``"all_reduce [16] float32 op=MAX (cell line 5)"``."""
    return " ".join(
        filter(None, (call.op, tensors(call), call.detail, f"(cell line {call.line})" if call.line else ""))
    )


def tensors(call: Call) -> str:
    """``"[16] float32"``; of several tensors the first, and how many."""
    if not call.shapes:
        return ""
    more = f" and {len(call.shapes) - 1} more" if len(call.shapes) > 1 else ""
    dtype = f" {call.dtypes[0]}" if call.dtypes else ""
    return f"[{', '.join(map(str, call.shapes[0]))}]{dtype}{more}"


def lines(mismatch: Mismatch) -> tuple[str, ...]:
    """Who called what, a line for each party."""
    return tuple(f"{describe_ranks(ranks, 'calls')} {call}" for ranks, call in mismatch.parties)
