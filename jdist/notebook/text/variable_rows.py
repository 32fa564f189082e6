"""The rows of ``%dist vars``: one for each name, or several where ranks have different things under it."""

from collections.abc import Sequence

from jdist.client.values.variable_table import COMPARED, Variable, VariableTable, Variant, format_range
from jdist.core.quantities import format_memory
from jdist.core.ranks import RankSet, describe_ranks

_HEADS = (
    "name",
    "ranks",
    "type",
    "shape",
    "dtype",
    "device",
    "placement",
    "bytes",
    "value",
    "mean",
    "norm",
    "compared",
)


def variable_rows(found: VariableTable) -> tuple[list[str], list[list[str]]]:
    """Headers and rows; columns in which nothing would stand are left out, except for the first three."""
    rows = [row for each in found for row in _rows(each)]
    kept = [i for i in range(len(_HEADS)) if i < 3 or any(row[i] for row in rows)]
    return [_HEADS[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _rows(variable: Variable) -> list[Sequence[str]]:
    missing = f"missing on {describe_ranks(variable.missing)}" if variable.missing else ""
    compared = ", ".join(part for part in (COMPARED[variable.comparison], missing) if part)
    return [
        _row("" if i else variable.name, variant, "" if i else compared) for i, variant in enumerate(variable.variants)
    ]


def _row(name: str, v: Variant, compared: str) -> Sequence[str]:
    shape = "" if v.shape is None else str(list(v.shape))
    length = "" if v.length is None else f"{v.length:,} {'characters' if v.type == 'str' else 'items'}"
    value = ", ".join(part for part in (v.value, length, v.detail, v.problem) if part)
    numbers = [format_range(pair, "{:.4g}".format) for pair in (v.mean, v.norm)]
    size = format_range(v.nbytes, format_memory)
    kind = (v.type, shape, v.dtype, v.device, v.placement)
    return (name, str(RankSet(v.ranks)), *kind, size, value, *numbers, compared)
