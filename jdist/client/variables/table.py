"""The table of variables: what ranks have under each name, and whether they agree. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, Self, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from jdist.core.errors import UsageError, nearest
from jdist.core.messages.values import VariableFacts, VariableList
from jdist.core.quantities import format_memory
from jdist.core.ranks import RankSet, describe_ranks, ranks_by

N = TypeVar("N", int, float)

Comparison = Literal["equal", "alike", "differs", ""]
SortKey = Literal["name", "size", "type"]

HIDDEN = "module, function or class"
COMPARED: dict[Comparison, str] = {"equal": "equal", "alike": "same metadata", "differs": "differs", "": ""}
_INDEX = re.compile(r":\d+")


class Variant(Struct, frozen=True, kw_only=True):
    """A variable on the ranks where its metadata agree; each pair of numbers is the least and the greatest of them."""

    ranks: tuple[int, ...]
    type: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""  # Without an index, which is another one on each rank.
    placement: str = ""
    length: int | None = None
    nbytes: tuple[int, int] | None = None
    value: str = ""  # All of a number or short text, if it is the same on these ranks; else how many there are.
    detail: str = ""
    mean: tuple[float, float] | None = None
    norm: tuple[float, float] | None = None
    problem: str = ""  # Why the contents could not be read on one of the ranks.


class Variable(Struct, frozen=True):
    """A name. ``comparison`` is about the ranks that have it:

    "equal": the contents are equal, by digest or because a number or short text was listed whole; "alike": type, shape,
    dtype, device, placement and length are the same, the contents were not compared; "differs": metadata or contents
    differ; "": there is one rank only.
    """

    name: str
    comparison: Comparison
    variants: tuple[Variant, ...]  # The one with most ranks first.
    missing: tuple[int, ...] = ()  # Ranks without this name.

    @property
    def size(self) -> int:
        """Bytes on the rank that has most."""
        return max((each.nbytes[1] for each in self.variants if each.nbytes is not None), default=0)

    def __str__(self) -> str:
        parts = "; ".join(f"[{RankSet(each.ranks)}] {describe_variant(each)}" for each in self.variants)
        compared = f", {COMPARED[self.comparison]}" if self.comparison else ""
        missing = f", missing on {describe_ranks(self.missing)}" if self.missing else ""
        return f"{self.name}: {parts}{compared}{missing}"


class VariableTable(Struct, frozen=True):
    """The variables of ranks by name."""

    ranks: tuple[int, ...]  # Those that answered.
    variables: tuple[Variable, ...]
    left_out: int = 0  # Number of names beyond the limit, at the rank with most.
    hidden: int = 0  # Number of modules, functions, classes and names with an underscore that are not listed.
    absent: dict[int, str] = {}  # Why a rank's names are not known.
    frames: dict[str, tuple[int, ...]] = {}  # The ranks whose names are those of a paused function.

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __getitem__(self, name: str) -> Variable:
        for each in self.variables:
            if each.name == name:
                return each
        raise KeyError(name)

    def sorted(self, key: SortKey) -> Self:
        """The table sorted by name, by size (the largest first) or by type. Raises UsageError for any other key."""
        keys: dict[str, Callable[[Variable], object]] = {
            "name": lambda v: v.name,
            "size": lambda v: (-v.size, v.name),
            "type": lambda v: (v.variants[0].type.lower(), v.name),
        }
        if key not in keys:
            raise UsageError(f"variables are not sorted by {key!r}{nearest(key, get_args(SortKey))}")
        return replace(self, variables=tuple(sorted(self.variables, key=keys[key])))  # type: ignore[arg-type]

    @property
    def notes(self) -> list[str]:
        """What the rows do not say, in sentences."""
        notes = [f"{describe_ranks(ranks, 'is')} paused in {at}: its names" for at, ranks in self.frames.items()]
        if self.left_out:
            notes.append(f"{self.left_out:,} more names are not listed; choose some with a pattern")
        if self.hidden:
            notes.append(f"{self.hidden:,} modules, functions, classes and names with a leading _ are not listed")
        by_reason = ranks_by(sorted(self.absent.items()))
        return notes + [f"{describe_ranks(ranks)}: {reason}" for reason, ranks in by_reason.items()]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.variables), *self.notes]) or "the ranks have no variables"

    __repr__ = __str__


def describe_variant(variant: Variant) -> str:
    """``Tensor [4, 4] float32 cpu, 64 B``."""
    v = variant
    shape = "" if v.shape is None else str(list(v.shape))
    length = "" if v.length is None else f"of {v.length:,}"
    head = " ".join(part for part in (v.type, shape, length, v.dtype, v.device, v.placement) if part)
    rest = (format_range(v.nbytes, format_memory), v.value, v.detail, v.problem)
    numbers = [f"{k} {format_range(pair, '{:.4g}'.format)}" for k, pair in (("mean", v.mean), ("norm", v.norm)) if pair]
    return ", ".join(part for part in (head, *rest, *numbers) if part)


def format_range(pair: tuple[float, float] | None, text: Callable[..., str]) -> str:
    """``"64 B"``, or ``"64 B … 1 KiB"`` where the ranks differ; "" if nothing is known."""
    if pair is None:
        return ""
    low, high = map(text, pair)
    return low if low == high else f"{low} … {high}"


def merge_lists(lists: Mapping[int, VariableList], absent: Mapping[int, str]) -> VariableTable:
    """One table of what each rank has answered."""
    # A rank that lists not all of its names may have any name after its last one: no table goes beyond that.
    ends = [each.variables[-1].name for each in lists.values() if each.left_out and each.variables]
    end = min(ends, default=None)
    by_name: dict[str, dict[int, VariableFacts]] = {}
    left_out = 0
    for rank, each in sorted(lists.items()):
        kept = [facts for facts in each.variables if end is None or facts.name <= end]
        left_out = max(left_out, each.left_out + len(each.variables) - len(kept))
        for facts in kept:
            by_name.setdefault(facts.name, {})[rank] = facts
    hidden = {rank: set(each.hidden) for rank, each in lists.items()}
    for name, found in by_name.items():
        found.update((rank, VariableFacts(name, HIDDEN)) for rank in lists if name in hidden[rank])
    not_listed = set().union(*hidden.values()) - by_name.keys()
    return VariableTable(
        tuple(sorted(lists)),
        tuple(_merge(name, found, lists.keys()) for name, found in sorted(by_name.items())),
        left_out,
        len(not_listed),
        dict(sorted(absent.items())),
        {frame: tuple(those) for frame, those in _frames(lists).items()},
    )


def _frames(lists: Mapping[int, VariableList]) -> dict[str, list[int]]:
    return ranks_by((rank, each.frame) for rank, each in sorted(lists.items()) if each.frame)


def _merge(name: str, found: Mapping[int, VariableFacts], ranks: Iterable[int]) -> Variable:
    alike = ranks_by((rank, _metadata(facts)) for rank, facts in sorted(found.items()))
    variants = [_variant(those, [found[rank] for rank in those]) for those in alike.values()]
    variants.sort(key=lambda variant: (-len(variant.ranks), variant.ranks))
    missing = tuple(rank for rank in sorted(ranks) if rank not in found)
    return Variable(name, _compare(list(found.values()), len(variants)), tuple(variants), missing)


def _metadata(facts: VariableFacts) -> tuple[object, ...]:
    return (facts.type, facts.shape, facts.dtype, _INDEX.sub("", facts.device), facts.placement, facts.length)


def _compare(found: list[VariableFacts], variants: int) -> Comparison:
    if len(found) == 1:
        return ""
    if any("Shard(" in facts.placement or "Partial(" in facts.placement for facts in found):
        contents = {""}  # each rank has another part
    else:
        contents = {facts.value or facts.digest for facts in found}
    if variants > 1 or len(contents - {""}) > 1:
        return "differs"
    return "alike" if "" in contents else "equal"


def _variant(ranks: list[int], found: list[VariableFacts]) -> Variant:
    first = found[0]
    values = {facts.value for facts in found}
    details = {facts.detail for facts in found}
    return Variant(
        ranks=tuple(ranks),
        type=first.type,
        shape=first.shape,
        dtype=first.dtype,
        device=_INDEX.sub("", first.device),
        placement=first.placement,
        length=first.length,
        nbytes=_span(facts.nbytes for facts in found),
        value=first.value if len(values) == 1 else f"({len(values)} values)",
        detail=first.detail if len(details) == 1 else "",
        mean=_span(facts.mean for facts in found),
        norm=_span(facts.norm for facts in found),
        problem=next((facts.problem for facts in found if facts.problem), ""),
    )


def _span(numbers: Iterable[N | None]) -> tuple[N, N] | None:
    known = [number for number in numbers if number is not None]
    return (min(known), max(known)) if known else None
