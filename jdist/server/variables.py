"""Variables as a browser is sent them: the table of what ranks have, and what one of them is on each rank. Pure."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from jdist.client.values.variable_table import Comparison, VariableTable, Variant
from jdist.core.ranks import RankSet, ranks_by

_PICTURES = 8  # Different values with a picture.
_TEXTS = ("str", "bytes")


class VariantRow(Struct, frozen=True):
    """A variable on the ranks whose metadata agree. No part of a text is sent: it is no metadata."""

    ranks: str
    type: str
    shape: tuple[int, ...] | None
    dtype: str
    device: str
    placement: str
    length: int | None
    nbytes: tuple[int, int] | None
    value: str
    detail: str


class VariableRow(Struct, frozen=True):
    """A name; see :class:`jdist.client.values.variable_table.Variable`."""

    name: str
    comparison: Comparison
    missing: str
    size: int
    variants: tuple[VariantRow, ...]


class VariablesSnapshot(Struct, frozen=True):
    """All names, and what the rows do not say."""

    variables: tuple[VariableRow, ...]
    notes: list[str]


class ValueRow(Struct, frozen=True):
    """What a variable is on the ranks where that is the same."""

    ranks: str
    description: dict[str, Any]


def snapshot_of(table: VariableTable) -> VariablesSnapshot:
    """The table as it is sent."""
    rows = tuple(
        VariableRow(v.name, v.comparison, str(RankSet(v.missing)), v.size, tuple(map(_variant, v.variants)))
        for v in table
    )
    return VariablesSnapshot(rows, table.notes)


def _variant(v: Variant) -> VariantRow:
    texts = ("", "") if v.type in _TEXTS else (v.value, v.detail)
    kind = (v.type, v.shape, v.dtype, v.device, v.placement, v.length, v.nbytes)
    return VariantRow(str(RankSet(v.ranks)), *kind, *texts)


def value_rows(found: Mapping[int, dict[str, Any]]) -> list[ValueRow]:
    """A row for each different description, with the ranks that have it; only the first ones with a picture."""
    keyed = {rank: repr(sorted(description.items())) for rank, description in sorted(found.items())}
    rows = []
    for i, ranks in enumerate(ranks_by(keyed.items()).values()):
        description = dict(found[ranks[0]])
        if i >= _PICTURES:
            description.pop("thumb", None)
        rows.append(ValueRow(str(RankSet(ranks)), description))
    return rows
