"""RankSet: an ordered set of ranks, as a user writes it and as jdist prints it."""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Self, TypeVar

from jdist.core.errors import UsageError, nearest
from jdist.core.topology import Mesh, Topology

H = TypeVar("H", bound=Hashable)

_DIGITS = 9  # A number with more digits is no rank; Python refuses to read thousands of digits.
_LISTED = 12  # Names that are listed in one sentence.
_RANGE = re.compile(rf"^(-?\d{{1,{_DIGITS}}})(?:-(-?\d{{1,{_DIGITS}}}))?$")


class RankSet:
    """Distinct ranks in ascending order.

    ``RankSet.parse("0-3,7", topology)`` understands single ranks, ranges, negative ranks counted from the end,
    ``node=1``, a mesh dimension ``dp=0``, a group's name, ``all``, and ``!`` before any of them for "all but".
    """

    __slots__ = ("_ranks",)

    def __init__(self, ranks: Iterable[int] = ()):
        self._ranks = tuple(sorted(set(ranks)))

    @classmethod
    def parse(
        cls, text: str, topology: Topology, mesh: Mesh | None = None, groups: Mapping[str, Iterable[int]] | None = None
    ) -> Self:
        """The ranks that ``text`` names. Raises UsageError naming the part that is wrong and what there is instead."""
        world = range(topology.world_size)
        included: set[int] = set()
        excluded: set[int] = set()
        parts = [p.strip() for p in str(text).split(",") if p.strip()]
        if not parts:
            raise UsageError("no ranks given; write 0-3,7, node=1, !2 or all")
        for part in parts:
            negated = part.startswith("!")
            found = _parse_part(part.lstrip("!").strip(), topology, mesh, groups or {})
            (excluded if negated else included).update(found)
        if not included and excluded:
            included = set(world)
        chosen = included - excluded
        if not chosen:
            raise UsageError(f"{text!r} leaves no rank of the {len(world)} there are")
        return cls(chosen)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, rank: object) -> bool:
        return rank in self._ranks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankSet) and self._ranks == other._ranks

    def __hash__(self) -> int:
        return hash(self._ranks)

    def __repr__(self) -> str:
        return f"RankSet({str(self)!r})"

    def __str__(self) -> str:
        """``"0-3,7"``: two or more in a row are written as a range."""
        rows = ([rank for _, rank in row] for _, row in groupby(enumerate(self._ranks), lambda at: at[1] - at[0]))
        return ",".join(str(row[0]) if len(row) == 1 else f"{row[0]}-{row[-1]}" for row in rows)

    def __sub__(self, other: Iterable[int]) -> Self:
        return type(self)(set(self._ranks).difference(other))

    def select(self, values: Mapping[int, object]) -> dict[int, object]:
        """The entries of ``values`` whose key is one of these ranks."""
        return {r: values[r] for r in self._ranks if r in values}


def _parse_part(part: str, topology: Topology, mesh: Mesh | None, groups: Mapping[str, Iterable[int]]) -> Iterable[int]:
    if part in ("all", "*", "world"):
        return range(topology.world_size)
    if part in groups:
        return groups[part]
    if "=" in part:
        return _parse_coordinate(part, topology, mesh)
    m = _RANGE.match(part)
    if m is None:
        hint = nearest(part, ["all", *groups])
        raise UsageError(f"{_short(part)!r} names no rank or group{hint}; write 0-3,7, node=1 or !2")
    first = _rank(m[1], topology)
    last = first if m[2] is None else _rank(m[2], topology)
    if last < first:
        raise UsageError(f"range {part!r} runs backwards; write {m[2]}-{m[1]}")
    return range(first, last + 1)


def _short(part: str) -> str:
    return part if len(part) <= 60 else part[:57] + "…"


def _rank(text: str, topology: Topology) -> int:
    n = topology.world_size
    rank = int(text)
    if not -n <= rank < n:
        raise UsageError(f"there is no rank {text}: the world has {n}, ranks 0 to {n - 1}")
    return rank % n


def _parse_coordinate(part: str, topology: Topology, mesh: Mesh | None) -> Iterable[int]:
    name, _, text = (p.strip() for p in part.partition("="))
    if not text.isdecimal() or len(text) > _DIGITS:
        raise UsageError(f"{_short(part)!r}: = needs an index, such as {name[:20]}=0")
    index = int(text)
    if name == "node":
        if index >= topology.nnodes:
            raise UsageError(f"there is no node {index}: the cluster has {topology.nnodes}, from 0")
        return topology.ranks_on(index)
    names = mesh.names if mesh is not None else ()
    if mesh is None or name not in names:
        raise UsageError(f"there is no mesh dimension {name!r}{nearest(name, ['node', *names])}")
    size = mesh.sizes[names.index(name)]
    if index >= size:
        raise UsageError(f"mesh dimension {name} has size {size}; {part} is outside it")
    return [r for r in range(topology.world_size) if mesh.coordinate(r, name) == index]


def describe_ranks(ranks: Iterable[int], verb: str = "") -> str:
    """``"rank 1 waits"``, ``"ranks 0, 2-3 wait"``: the verb is given as one rank does it."""
    found = sorted(ranks)
    if len(found) == 1:
        return f"rank {found[0]} {verb}".strip()
    plural = {"has": "have", "still has": "still have", "is": "are", "runs": "run"}.get(verb, verb.removesuffix("s"))
    return f"ranks {str(RankSet(found)).replace(',', ', ')} {plural}".strip()


def describe_fresh_ranks(ranks: Iterable[int]) -> str:
    """``"rank 2 is fresh: its namespace is lost"``."""
    found = tuple(ranks)
    lost = "its namespace is lost" if len(found) == 1 else "their namespaces are lost"
    return f"{describe_ranks(found, 'is')} fresh: {lost}"


def describe_carried(rank: int, lost: Sequence[tuple[str, str]]) -> str:
    """``"rank 2 was started again and has its names from before, except: it (generator)"``."""
    text = f"rank {rank} was started again and has its names from before"
    shown = [f"{name} ({why})" for name, why in lost[:_LISTED]]
    more = [f"{len(lost) - _LISTED} more"] if len(lost) > _LISTED else []
    return text + (f", except: {', '.join([*shown, *more])}" if lost else "")


def ranks_by(values: Iterable[tuple[int, H]]) -> dict[H, list[int]]:
    """The ranks (or nodes) of equal values together; values in the order in which they first occur."""
    ranks: dict[H, list[int]] = {}
    for rank, value in values:
        ranks.setdefault(value, []).append(rank)
    return ranks
