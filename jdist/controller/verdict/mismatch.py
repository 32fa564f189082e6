"""Mismatch: ranks of a group that called different things under one sequence number. Pure.

Who is accused of a mismatch is decided only here: the ranks that differ from a majority of the group. Where there is no
majority both sides are shown, and no rank is accused.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from jdist.controller.verdict.wait_graph import Ranks, members
from jdist.core.messages.observation import SAME_DTYPE, SAME_SIZE, Call, sizes
from jdist.core.ranks import ranks_by

_SPLITS = re.compile(r"splits=(even|\[[\d, ]*\])→(even|\[[\d, ]*\])")

Sizes = list[int] | None  # Elements for each member; None if unknown.


class Mismatch(Struct, frozen=True):
    """The first number at which the calls differ, and which ranks called what: the largest party first."""

    number: int
    what: str  # "operation", "size", "dtype", "root", ...
    parties: tuple[tuple[tuple[int, ...], Call], ...]
    responsible: tuple[int, ...] = ()


def accused(parties: Sequence[Sequence[int]], size: int) -> tuple[int, ...]:
    """Of ranks that differ, those outside the party to which most of the group's ``size`` ranks belong, if any does."""
    largest = max(parties, key=len)
    if 2 * len(largest) <= size:
        return ()
    return tuple(sorted(rank for ranks in parties if ranks is not largest for rank in ranks))


def find(group: str, number: int, ranks: Ranks) -> Mismatch | None:
    """How the calls of collective ``number`` differ, or of the first of the differing ones that lead up to it."""
    found, ordered = None, sorted(ranks.items())
    while number > 0:
        calls = {r: call for r, snapshot in ordered if (call := snapshot.call(group, number)) is not None}
        here = compare(number, calls, members(group, ranks))
        if here is None:
            return found
        found, number = here, number - 1
    return found


def compare(number: int, calls: Mapping[int, Call], members: Sequence[int]) -> Mismatch | None:
    """How calls under one number differ, by rank; ``members`` are the group's ranks in its own order."""
    if len(calls) < 2:
        return None
    ops = {r: c.op for r, c in calls.items()}
    if len(set(ops.values())) > 1:
        return _differing(number, "operation", ops, calls, members)
    op = next(iter(ops.values()))
    with_tensors = {r: c for r, c in calls.items() if c.shapes}
    dtypes = {r: frozenset(c.dtypes) for r, c in with_tensors.items()}
    if op in SAME_DTYPE and len(set(dtypes.values())) > 1:
        return _differing(number, "dtype", dtypes, calls, members)
    splits = {r: s for r, c in calls.items() if (s := _split_sizes(c, len(members))) is not None}
    if splits:
        even = {r: (_even(c, len(members)), None) for r, c in calls.items()}
        return _misfit(number, {**even, **splits}, calls, members)
    of_size = {r: sizes(c) for r, c in with_tensors.items()}
    if (op in SAME_SIZE or op == "all_to_all_single") and len(set(of_size.values())) > 1:
        return _differing(number, "size", of_size, calls, members)
    details = {r: c.detail for r, c in calls.items() if c.detail}
    if len(set(details.values())) > 1:
        names = {d.partition("=")[0] for d in details.values()}
        what = "root" if names <= {"src", "dst"} else "reduction"
        return _differing(number, what, details, calls, members)
    return None


def _differing(
    number: int, what: str, values: Mapping[int, object], calls: Mapping[int, Call], members: Sequence[int]
) -> Mismatch:
    parties = _parties(values, calls)
    size = max(len(members), len(values))
    return Mismatch(number, what, parties, accused([ranks for ranks, _ in parties], size))


def _misfit(
    number: int, splits: Mapping[int, tuple[Sizes, Sizes]], calls: Mapping[int, Call], members: Sequence[int]
) -> Mismatch | None:
    """Ranks that send other numbers of elements than peers expect; a rank that is in every such pair is accused."""
    pairs = set()
    for i, (given, _) in splits.items():
        for j, (_, taken) in splits.items():
            a, b = members.index(i), members.index(j)
            if given and taken and b < len(given) and a < len(taken) and given[b] != taken[a]:
                pairs.add(frozenset((i, j)))
    if not pairs:
        return None
    common = frozenset.intersection(*pairs)
    involved = frozenset.union(*pairs)
    parties = _parties({r: r for r in involved}, calls)
    return Mismatch(number, "split sizes", parties, tuple(common) if len(common) == 1 else ())


def _split_sizes(call: Call, size: int) -> tuple[Sizes, Sizes] | None:
    """The split sizes that an all_to_all sends to and expects from each of ``size`` members, if known."""
    found = _SPLITS.search(call.detail)
    if found is None:
        return None
    given, taken = (None if part == "even" else _numbers(part) for part in found.groups())
    return given or _even(call, size), taken


def _even(call: Call, size: int) -> Sizes:
    """The elements that a member sends to each other one if it named no split sizes."""
    return [call.shapes[0][0] // size] * size if size and len(call.shapes) == 1 and call.shapes[0] else None


def _numbers(text: str) -> list[int]:
    """``"[1, 3]"`` → [1, 3]."""
    return [int(n) for n in text[1:-1].split(",") if n.strip()]


def _parties(values: Mapping[int, object], calls: Mapping[int, Call]) -> tuple[tuple[tuple[int, ...], Call], ...]:
    ordered = sorted(ranks_by(values.items()).values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((tuple(ranks), calls[ranks[0]]) for ranks in ordered)
