"""Resources: what nodes and ranks have used over time, as their nodes answer, as a table for users."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct

from jdist.client.link import Link, new_request
from jdist.client.metrics.logged import PointTable
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.nodes import ListRuns, NodeResources, ReadResources, RunInterval, RunIntervals, Series
from jdist.core.messages.status import ClusterFacts
from jdist.core.quantities import format_count, format_memory, format_rate, format_whole_seconds
from jdist.core.table import Table

QUANTITIES = ("cpu", "memory", "gpu", "gpu_memory", "received", "sent")

_Row = tuple[float, int, int | None, str, float]


class NodeUsage(Struct, frozen=True):
    """What a node has used. ``ages`` are those of the numbers in ``series``, in seconds, the oldest first."""

    node: int
    hostname: str
    cores: int
    memory: int  # Bytes of memory that it has.
    gpus: int
    gpu_memory: int  # Bytes of memory that its GPUs have; 0 if unknown.
    ages: tuple[float, ...]
    series: Series


class RankUsage(Struct, frozen=True):
    """What a rank has used: memory is that of its process, CPU time also that of its child processes."""

    rank: int
    node: int
    ages: tuple[float, ...]
    series: Series


class Resources(PointTable):
    """What the nodes and ranks used during the last ``seconds``; ``repr`` sums it up.

    ``for time, node, rank, name, value in resources`` goes through the numbers; ``rank`` is None for those of a node as
    a whole. ``time`` is in seconds since 1970, by the clock of this client. The names are ``cpu`` (busy cores),
    ``memory`` and ``gpu_memory`` (bytes; the highest since the number before), ``gpu`` (share of the time in which the
    GPU was busy, 0 to 1), and of nodes ``received`` and ``sent`` (bytes per second over the network).
    """

    COLUMNS: ClassVar = ("time", "node", "rank", "name", "value")
    NAME: ClassVar = "resources"

    def __init__(
        self,
        seconds: float,
        nodes: Mapping[int, NodeUsage],
        ranks: Mapping[int, RankUsage],
        runs: Sequence[RunInterval],
        missing: Mapping[int, str],
    ) -> None:
        self.seconds = seconds
        self.nodes = dict(nodes)
        """``{node: NodeUsage}``"""
        self.ranks = dict(ranks)
        """``{rank: RankUsage}``"""
        self.runs = list(runs)
        """The runs of that time, as RunInterval: ``run``, ``ranks``, ``began`` and ``ended`` in seconds before now."""
        self.missing = dict(missing)
        """``{node: why}`` for nodes that did not answer."""
        self._now = time.time()

    def __iter__(self) -> Iterator[_Row]:
        for usage in self.nodes.values():
            yield from self._points(usage.node, None, usage.ages, usage.series)
        for own in self.ranks.values():
            yield from self._points(own.node, own.rank, own.ages, own.series)

    def _points(self, node: int, rank: int | None, ages: Sequence[float], series: Series) -> Iterator[_Row]:
        for name in QUANTITIES:
            for age, value in zip(ages, series.get(name, ()), strict=False):
                if not math.isnan(value):
                    yield self._now - age, node, rank, name, value

    # ------------------------------------------------------------ summary

    @property
    def headline(self) -> str:
        """``resources of the last 5 min · 2 nodes · 4 ranks``."""
        counts = (format_count(len(self.nodes), "node"), format_count(len(self.ranks), "rank"))
        whole = format_whole_seconds(self.seconds).removesuffix(" 0 s").removesuffix(" 0 min")
        return " · ".join((f"resources of the last {whole}", *counts))

    @property
    def notes(self) -> list[str]:
        """The nodes that did not answer, in words."""
        return [f"node {node} is left out: {reason}" for node, reason in sorted(self.missing.items())]

    def summary(self, ranks: Sequence[int] | None = None) -> Table:
        """A row for each node and rank: the newest numbers, with mean and peak of that time."""
        of = [(f"node {n} ({u.hostname})", u.series) for n, u in sorted(self.nodes.items())]
        of += [(f"rank {r}", u.series) for r, u in sorted(self.ranks.items()) if ranks is None or r in ranks]
        known = {name for _, series in of for name in series}
        columns = [column for column in _COLUMNS if column.quantity in known]
        rows = ((name, *(c.text(series) for c in columns)) for name, series in of)
        return Table.of(("", *(c.head for c in columns)), rows, self.notes)

    def __repr__(self) -> str:
        return f"{self.headline}\n{self.summary().text()}"


class _Column(Struct, frozen=True):
    """One column of the summary."""

    head: str
    quantity: str
    choose: Callable[[Sequence[float]], float]  # Of the numbers that are known, one or more.
    format: Callable[[float], str]

    def text(self, series: Series) -> str:
        known = [value for value in series.get(self.quantity, ()) if not math.isnan(value)]
        return self.format(self.choose(known)) if known else ""


def _newest(values: Sequence[float]) -> float:
    return values[-1]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _cores(value: float) -> str:
    return f"{value:.2f}"


def _bytes(value: float) -> str:
    return format_memory(int(value))


def _share(value: float) -> str:
    return f"{value:.0%}"


_COLUMNS = (
    _Column("cores busy", "cpu", _newest, _cores),
    _Column("mean", "cpu", _mean, _cores),
    _Column("peak", "cpu", max, _cores),
    _Column("memory", "memory", _newest, _bytes),
    _Column("peak", "memory", max, _bytes),
    _Column("GPU busy", "gpu", _newest, _share),
    _Column("mean", "gpu", _mean, _share),
    _Column("GPU memory", "gpu_memory", _newest, _bytes),
    _Column("peak", "gpu_memory", max, _bytes),
    _Column("received", "received", _newest, format_rate),
    _Column("sent", "sent", _newest, format_rate),
)


async def collect_resources(link: Link, facts: ClusterFacts, seconds: float, points: int, timeout: float) -> Resources:
    """What the last ``seconds`` were used for, in ``points`` numbers at most. A silent node is in ``missing``.

    Raises UsageError if nodes refuse the question.
    """
    here = [place for place, name in enumerate(facts.hostnames) if name]
    answers, spans = await asyncio.gather(
        link.query_nodes(here, ReadResources(seconds, points), timeout),
        link.request(ListRuns(new_request(), seconds), RunIntervals),
    )
    nodes: dict[int, NodeUsage] = {}
    ranks: dict[int, RankUsage] = {}
    missing: dict[int, str] = {}
    for place, name in enumerate(facts.hostnames):
        node, answer = facts.node_of[place] if facts.node_of else place, answers.get(place)
        if isinstance(answer, NodeResources):
            # Where each place is a launcher's task, several report the same node.
            a = answer
            usage = NodeUsage(node, name, a.cores, a.memory, a.gpus, a.gpu_memory, a.ages, a.node)
            nodes.setdefault(node, usage)
            ranks |= {rank: RankUsage(rank, node, a.ages, series) for rank, series in sorted(a.ranks.items())}
        else:
            missing[node] = answer.reason if isinstance(answer, QueryFailed) else "it is not attached"
    if not nodes and answers:
        raise UsageError("; ".join(f"node {node}: {reason}" for node, reason in missing.items()))
    return Resources(seconds, nodes, dict(sorted(ranks.items())), spans.runs, missing)
