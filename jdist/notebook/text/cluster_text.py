"""The status of a cluster in words: a row for each rank, its groups, and the whole as text and HTML.

Variables as text and HTML: the rows of ``%dist vars``, and what ``%dist show`` says of one name by rank.
"""

import html
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

from jdist.client.debug import describe_doing, describe_pause, shortened
from jdist.client.metrics.pictures import histogram_line, histogram_svg, thumb_svg
from jdist.client.variables.table import COMPARED, Variable, VariableTable, Variant, format_range
from jdist.core.errors import sentence
from jdist.core.messages.observation import Observation
from jdist.core.messages.saving import SaveStatus
from jdist.core.messages.status import RankFacts, StatusReport
from jdist.core.quantities import format_bytes, format_count, format_duration, format_memory
from jdist.core.ranks import RankSet, describe_ranks, ranks_by
from jdist.core.table import Table
from jdist.notebook.text.remedy_text import command

COLUMNS = ("rank", "node", "device", "pid", "state", "doing", "memory", "GPU", "GPU memory", "last line", "lost")
PAUSE_SIGN = "⏸"
_GIB = 1 << 30
_OPTIONAL = ("GPU", "GPU memory", "lost")  # Columns that are left out while they are empty.


def describe_gpu_memory(seen: Observation) -> str:
    """``"1.2 of 141 GiB"``; "by all" where the driver reports all processes' memory only; "" without a GPU."""
    gpu = seen.gpu
    if gpu is None or not (gpu.total or gpu.own):
        return ""
    taken = (gpu.used if gpu.own is None else gpu.own) / _GIB
    total = f" of {gpu.total / _GIB:.0f}" if gpu.total else ""
    return f"{taken:.1f}{total} GiB{' by all' if gpu.own is None else ''}"


def describe_loss(row: RankFacts) -> str:
    """How and when the rank's previous process ended; "" if it had none."""
    if not row.death:
        return ""
    when = datetime.now().astimezone() - timedelta(seconds=row.death_age)
    if row.state == "gone":
        what = "is gone since"
    else:
        what = "is fresh since" if row.fresh else "was started again with its names at"
    return f"{what} {when:%H:%M:%S}: {row.death}"


def rank_row(row: RankFacts, seen: Observation | None) -> dict[str, str]:
    """A rank's cells by column; those of :data:`COLUMNS`, and CPU."""
    run = f" (run {row.run})" if row.run else ""
    state = row.state if row.paused is None else "paused"
    cells = {
        "rank": str(row.rank),
        "node": f"{row.node_rank} {row.hostname}",
        "device": "?" if row.pid else "",
        "pid": str(row.pid or ""),
        "state": f"{state}{', pauses soon' if row.is_pausing else ''}{run}" + (", fresh" if row.fresh else ""),
        "doing": "" if row.paused is None else shortened(describe_pause(row.paused), 80),
        "last line": shortened(row.last_line, 60),
        "lost": describe_loss(row),
    }
    if seen is None:
        return cells
    return cells | {
        "device": seen.device,
        "doing": describe_doing(seen) if row.run and row.paused is None else cells["doing"],
        "CPU": "" if seen.doing.cpu is None else f"{seen.doing.cpu:.0%}",
        "memory": f"{seen.rss / 1e6:,.0f} MB" if seen.rss else "",
        "GPU": "" if seen.gpu is None or seen.gpu.busy is None else f"{seen.gpu.busy:.0%}",
        "GPU memory": describe_gpu_memory(seen),
    }


def group_rows(found: StatusReport) -> list[tuple[str, str, str]]:
    """``(name, ranks, how it was made)`` of the world, of named groups and of those that cells made."""
    named = {name: ranks for name, ranks in found.facts.groups.items() if "=" not in name}
    rows = [("world", str(RankSet(range(found.facts.topology.world_size))), "the default group")]
    rows += [(name, str(RankSet(ranks)), "named") for name, ranks in named.items()]
    own = [group for group in found.groups if group.ranks and group.name not in named and not group.is_gone]
    return rows + [(group.name or "(no name)", str(RankSet(group.ranks)), "made in a cell") for group in own]


def status_bundle(found: StatusReport, observed: Mapping[int, Observation], note: str = "") -> dict[str, str]:
    """``{"text/plain", "text/html"}`` of the whole report; ``observed`` says what ranks do."""
    facts = found.facts
    title = f"cluster {facts.name} · {facts.phase} · {facts.backend} · generation {facts.generation}"
    if facts.reason:
        title += f" · {sentence(facts.reason, facts.remedies, command)}"
    rows = [rank_row(row, observed.get(row.rank)) for row in found.ranks]
    for row, cells in zip(found.ranks, rows, strict=True):
        cells["state"] = f"{PAUSE_SIGN} {cells['state']}" if row.paused is not None else cells["state"]
    body = Table.of(COLUMNS, ([row.get(head) for head in COLUMNS] for row in rows)).without_empty(*_OPTIONAL)
    above: Sequence[str] = (title, *found.silences, *save_lines(found.saves))
    verdicts = "\n".join(verdict.text(command) for verdict in found.verdicts)
    below = f"<pre>{escape(verdicts)}</pre>" if verdicts else ""
    return {
        "text/plain": "\n".join(filter(None, (*above, body.text(), verdicts, note))),
        "text/html": _lines(above) + body.html() + below + _lines([note] if note else []),
    }


def save_lines(saves: SaveStatus) -> list[str]:
    """When the session was saved last, and when it will be."""
    lines, last = [], saves.last
    if last is not None:
        at = datetime.now().astimezone() - timedelta(seconds=saves.age)
        done = f"{format_bytes(last.nbytes)} in {format_duration(last.seconds)}: {last.folder}"
        lines.append(f"last save {at:%H:%M:%S}: {last.error}" if last.error else f"last save {at:%H:%M:%S}, {done}")
    if saves.options is not None:
        when = f"the next in {format_duration(saves.due_in)}"
        if saves.waits_for:
            when = f"the next waits for {saves.waits_for} to end, or to call jdist.save_if_due()"
        lines.append(f"saves every {format_duration(saves.every)} to {saves.options.directory}; {when}")
    return lines


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in lines)


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
