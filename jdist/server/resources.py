"""Resources as a browser is sent them: series by node and rank, with ages in place of times. Pure."""

from msgspec import Struct

from jdist.client.measure.resources import Resources
from jdist.core.messages.resources import Series
from jdist.core.ranks import RankSet

_DIGITS = 4  # Of a number: more than a chart shows.


class RankSeries(Struct, frozen=True):
    """What a rank has used."""

    rank: int
    series: Series


class NodeSeries(Struct, frozen=True):
    """What a node and its ranks have used; see :class:`jdist.client.measure.resources.NodeUsage`."""

    node: int
    hostname: str
    cores: int
    memory_total: int
    gpus: int
    gpu_memory_total: int
    ages: tuple[float, ...]
    series: Series
    ranks: tuple[RankSeries, ...]


class RunMark(Struct, frozen=True):
    """A run, with the ages of its begin and end."""

    run: int
    ranks: str
    began: float
    ended: float | None


class ResourcesSnapshot(Struct, frozen=True):
    """All that a chart shows."""

    seconds: float
    nodes: tuple[NodeSeries, ...]
    runs: tuple[RunMark, ...]
    missing: list[str]


def snapshot_of(found: Resources) -> ResourcesSnapshot:
    """The numbers as they are sent; in JSON, those that are unknown are null."""
    nodes = []
    for u in found.nodes.values():
        ages = tuple(round(age, 2) for age in u.ages)
        # Agents that share a node measure at moments of their own; the ages of the first one stand for all of them.
        own = [r for r in found.ranks.values() if r.node == u.node]
        ranks = tuple(RankSeries(r.rank, {n: _fit(_rounded(v), len(ages)) for n, v in r.series.items()}) for r in own)
        series = {name: _rounded(values) for name, values in u.series.items()}
        totals = (u.cores, u.memory, u.gpus, u.gpu_memory)
        nodes.append(NodeSeries(u.node, u.hostname, *totals, ages, series, ranks))
    runs = tuple(RunMark(r.run, str(RankSet(r.ranks)), _age(r.began), r.ended and _age(r.ended)) for r in found.runs)
    return ResourcesSnapshot(found.seconds, tuple(nodes), runs, found.notes)


def _age(seconds: float) -> float:
    return round(seconds, 2)


def _rounded(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)


def _fit(values: tuple[float, ...], count: int) -> tuple[float, ...]:
    """The newest ``count`` values; where there are fewer, unknown ones before them."""
    return (float("nan"),) * (count - len(values)) + values[-count:]
