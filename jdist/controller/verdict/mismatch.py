"""Mismatch: ranks of a group that called different things under one sequence number, and the verdict on it. Pure."""

import itertools
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from jdist.controller.verdict.wait_graph import Ranks, members
from jdist.core.observation import INTERRUPT, SAME_SIZE, Call, Verdict, sizes
from jdist.core.ranks import describe_ranks, ranks_by

_SPLITS = re.compile(r"splits=\[([\d, ]*)\]→\[([\d, ]*)\]")


class Mismatch(Struct, frozen=True):
    """The first number at which the calls differ, and which ranks called what: the largest party first."""

    number: int
    what: str  # "operation", "size", "dtype", "root", ...
    parties: tuple[tuple[tuple[int, ...], str], ...]

    @property
    def responsible(self) -> tuple[int, ...]:
        """The ranks of the smallest party, or of all if it is no minority."""
        largest, smallest = self.parties[0][0], self.parties[-1][0]
        if len(largest) > len(smallest):
            return smallest
        return tuple(sorted(rank for ranks, _ in self.parties for rank in ranks))


def verdict(
    run: int, found: Mismatch, op: str, label: str, waiting: tuple[int, ...] = (), *, has_passed: bool = False
) -> Verdict:
    """The verdict on a mismatch in the group called ``label``; ``has_passed``: it blocked no rank."""
    if found.what == "operation":
        group, at = f"the ranks of group {label}", f"in different collectives at #{found.number}"
        reason = f"{group} were {at}: what it left is wrong" if has_passed else f"{group} are {at}"
    else:
        call, what = f"{found.parties[0][1].partition(' ')[0]} #{found.number} of group {label}", found.what
        passed = f"{call} differed between ranks in {what}: what it left is wrong"
        reason = passed if has_passed else f"{call} differs between ranks in {what}"
    details = tuple(f"{describe_ranks(ranks, 'calls')} {call}" for ranks, call in found.parties if call)
    remedies = () if has_passed else (INTERRUPT,)
    return Verdict(
        run, "mismatch", found.responsible, waiting, reason, details, remedies, op, label, found.number, has_passed
    )


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
        return Mismatch(number, "operation", _parties(ops, calls))
    if next(iter(ops.values())) in SAME_SIZE:
        with_tensors = {r: c for r, c in calls.items() if c.shapes}
        dtypes = {r: c.dtypes for r, c in with_tensors.items()}
        if len(set(dtypes.values())) > 1:
            return Mismatch(number, "dtype", _parties(dtypes, calls))
        of_size = {r: sizes(c) for r, c in with_tensors.items()}
        if len(set(of_size.values())) > 1:
            return Mismatch(number, "size", _parties(of_size, calls))
    splits = {r: s for r, c in calls.items() if (s := _split_sizes(c)) is not None}
    for (i, (given, _)), (j, (_, taken)) in itertools.product(splits.items(), repeat=2):
        a, b = members.index(i), members.index(j)
        if b < len(given) and a < len(taken) and given[b] != taken[a]:
            return Mismatch(number, "split sizes", _parties({i: i, j: j}, calls))
    if splits:
        return None
    details = {r: c.detail for r, c in calls.items() if c.detail}
    if len(set(details.values())) > 1:
        names = {d.partition("=")[0] for d in details.values()}
        return Mismatch(number, "root" if names <= {"src", "dst"} else "reduction", _parties(details, calls))
    return None


def _split_sizes(call: Call) -> tuple[list[int], list[int]] | None:
    """What an all_to_all gives to and takes from each member, if the sizes differ."""
    found = _SPLITS.search(call.detail)
    if found is None:
        return None
    given, taken = ([int(n) for n in part.split(",") if n.strip()] for part in found.groups())
    return given, taken


def _parties(values: Mapping[int, object], calls: Mapping[int, Call]) -> tuple[tuple[tuple[int, ...], str], ...]:
    ordered = sorted(ranks_by(values.items()).values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((tuple(ranks), describe_call(calls[ranks[0]])) for ranks in ordered)


def describe_call(call: Call) -> str:
    """``"all_reduce [16] float32 op=MAX (cell line 5)"``."""
    line = f"(cell line {call.line})" if call.line else ""
    return " ".join(filter(None, (call.op, describe_tensors(call), call.detail, line)))


def describe_tensors(call: Call) -> str:
    """``"[16] float32"``; of several tensors the first, and how many."""
    if not call.shapes:
        return ""
    more = f" and {len(call.shapes) - 1} more" if len(call.shapes) > 1 else ""
    dtype = f" {call.dtypes[0]}" if call.dtypes else ""
    return f"[{', '.join(map(str, call.shapes[0]))}]{dtype}{more}"
