"""Variables as text and HTML: the rows of ``%dist vars``, and what ``%dist show`` says of one name by rank."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from jdist.client.metrics.pictures import histogram_line, histogram_svg, thumb_svg
from jdist.client.variables.table import COMPARED, Variable, VariableTable, Variant, format_range
from jdist.core.quantities import format_count, format_memory
from jdist.core.ranks import RankSet, describe_ranks, ranks_by
from jdist.core.table import Table

_NUMBERS = ("mean", "std", "norm")
_SHOWN = ("rank", "type", "shape", "dtype", "device", "placement", "bytes", *_NUMBERS, "NaN", "")
_OTHERS = {"nan": "NaN", "negative_infinity": "-inf", "positive_infinity": "inf", "outside": "changed meanwhile"}
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


def variable_rows(found: VariableTable) -> Table:
    """The variables; columns in which nothing would stand are left out, except for the first three."""
    return Table.of(_HEADS, (row for each in found for row in _rows(each))).without_empty(*_HEADS[3:])


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


# ---------------------------------------------------------------- one variable


def value_bundle(found: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    """``{"text/plain", "text/html"}`` of what a name is on each rank, as ``Cluster.show`` describes it."""
    rows = [_value_row(rank, each) for rank, each in found.items()]
    parts = [Table.of(_SHOWN, rows).bundle()]
    thumbs = "".join(_thumb(rank, each) for rank, each in found.items() if any(each.get("thumb") or ()))
    parts += [{"text/html": thumbs}] if thumbs else []
    parts += _histograms(found)
    return {
        "text/plain": "\n\n".join(part["text/plain"] for part in parts if "text/plain" in part),
        "text/html": "".join(part["text/html"] for part in parts),
    }


def _value_row(rank: int, d: Mapping[str, Any]) -> list[object]:
    if "error" in d:
        return [rank, d["error"]]
    shape = "" if d["shape"] is None else str(list(d["shape"]))
    numbers = ["" if d[key] is None else f"{d[key]:.6g}" for key in _NUMBERS]
    nan = "" if d["nan_count"] is None else str(d["nan_count"])
    size = "" if d["nbytes"] is None else f"{d['nbytes']:,}"
    detail = d["detail"] or ("" if d["length"] is None else f"length {d['length']}")
    return [rank, d["type"], shape, d["dtype"], d["device"], d["placement"], size, *numbers, nan, detail]


def _thumb(rank: int, description: Mapping[str, Any]) -> str:
    thumb, shape = description["thumb"], description["shape"]
    is_whole = description["placement"] or [len(thumb), len(thumb[0])] == list(shape)
    some = "" if is_whole else f", {len(thumb)} x {len(thumb[0])} of the elements"
    return f"<div>rank {rank}{some}: {thumb_svg(thumb)}</div>"


def _histograms(found: Mapping[int, Mapping[str, Any]]) -> list[dict[str, str]]:
    """How the elements are distributed on the ranks, a line for those on which that is equal; empty if none has any."""
    drawn = {rank: each["histogram"] for rank, each in found.items() if _has_elements(each.get("histogram"))}
    if not drawn:
        return []
    one = next(iter(drawn.values()))
    head = f"values from {one['low']:.6g} to {one['high']:.6g} in {len(one['counts'])} bins"
    groups = list(ranks_by((rank, repr(each)) for rank, each in drawn.items()).values())
    rows, pictures = [], []
    for ranks in groups:
        histogram = drawn[ranks[0]]
        about = _about(histogram, is_sample=found[ranks[0]]["sampled"])
        rows.append([str(RankSet(ranks)), f"│{histogram_line(histogram['counts'])}│", about])
        words = html.escape(f"{describe_ranks(ranks)}: {head}")
        pictures.append(f"<div>{words}, {about}<br>{histogram_svg(histogram)}</div>")
    return [{"text/plain": Table.of(("ranks", head, ""), rows).text(), "text/html": "".join(pictures)}]


def _has_elements(histogram: Mapping[str, Any] | None) -> bool:
    return histogram is not None and bool(any(histogram["counts"]) or any(histogram[key] for key in _OTHERS))


def _about(histogram: Mapping[str, Any], *, is_sample: bool) -> str:
    """How many elements there are, and how many of them are in no bin."""
    others = [f"{histogram[key]:,} {word}" for key, word in _OTHERS.items() if histogram[key]]
    sampled = ["of a sample"] if is_sample else []
    return ", ".join([format_count(sum(histogram["counts"]), "element"), *others, *sampled])
