"""What a browser is sent: a cluster, its resources and its variables, as JSON. Pure.

A field of which nothing is known is UNSET and left out. Nothing that a browser is sent is needed to reach a cluster: no
key, no join line, no address, no port. Resources are series by node and rank, with ages in place of times.

``labextension/server_types.py`` makes TypeScript of these classes, their docstrings and the comments at their fields.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from msgspec import UNSET, Struct, UnsetType, convert
from msgspec.structs import replace

from jdist.client.debug import Branch, describe_pause
from jdist.client.measure.resources import Resources
from jdist.client.variables.table import Comparison, VariableTable, Variant
from jdist.core.errors import Remedy, sentence
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.membership import GroupSpec
from jdist.core.messages.nodes import Quantity, Series
from jdist.core.messages.observation import Activity, ActivityKind, Observation, PauseReason, VerdictKind
from jdist.core.messages.status import RankFacts, StatusReport
from jdist.core.ranks import RankSet, ranks_by
from jdist.core.topology import Mesh
from jdist.launch.base import LauncherForm
from jdist.wire.transport.keys import Connection

_JOIN_LINE = re.compile(r"jdist1\.\S+")
_MIB = 1 << 20


class NodeRow(Struct, frozen=True):
    """A node; its hostname is "" if none of its agents is here."""

    node: int
    hostname: str
    is_here: bool
    is_unreachable: bool
    ranks: tuple[int, ...]


class GroupRow(Struct, frozen=True):
    """A named group."""

    name: str
    ranks: tuple[int, ...]


class ProgressRow(Struct, frozen=True):
    """How far a rank is in a group: the numbers of its last collective there."""

    group: str
    begun: int
    ended: int


class ActivityRow(Struct, frozen=True):
    """What a rank's main thread does, and in which collective it is."""

    kind: ActivityKind
    op: str
    number: int  # The collective's sequence number in its group; 0 if it is in none.
    group: str  # The name of that group; "" if it is not known.
    line: int | None
    source: str
    seconds: float
    cpu: float | None
    waits_for: str
    process: str


class PauseRow(Struct, frozen=True):
    """Where a rank is paused: in ``run``, at a line of the cell of run ``of_run``, or of ``file`` if that is 0."""

    run: int
    reason: PauseReason
    text: str  # All of this in words.
    function: str
    line: int
    file: str
    of_run: int


class RankRow(Struct, frozen=True):
    """A rank's row. Sizes in bytes, shares from 0 to 1."""

    rank: int
    node: int
    local_rank: int
    hostname: str
    pid: int
    state: str
    run: int
    last_line: str
    is_fresh: bool  # It was replaced, and its earlier variables are lost.
    death: str  # Why its last process ended; "" if it still has its first.
    death_age: float  # Seconds since then.
    paused: PauseRow | UnsetType = UNSET  # Where it is paused.
    is_pausing: bool | UnsetType = UNSET  # It was asked to pause, and has not yet.
    device: str = ""
    rss: int | None = None  # Bytes of memory that its process uses; None as long as the rank has not reported it.
    doing: ActivityRow | None = None
    progress: tuple[ProgressRow, ...] = ()
    gpu_name: str | UnsetType = UNSET  # The number and name of its GPU.
    gpu_total: int | UnsetType = UNSET  # Bytes of memory that this GPU has; 0 where the driver does not report it.
    gpu_used: int | UnsetType = UNSET  # Bytes of it that all processes use.
    gpu_own: int | UnsetType | None = UNSET  # Bytes that this rank uses; None where the driver does not report it.
    gpu_busy: float | UnsetType | None = UNSET  # Of the recent time; None for an idle rank, or if it is not known.

    def timeless(self) -> Self:
        """The row without what changes by itself as time passes."""
        return replace(self, death_age=0, doing=self.doing and replace(self.doing, seconds=0))


class RunRow(Struct, frozen=True):
    """An unfinished run; ``done`` of its ``count`` ranks have ended."""

    number: int
    state: str
    ranks: str
    count: int
    done: int
    seconds: float


class VerdictRow(Struct, frozen=True):
    """Why a run makes no progress, and the suggested actions."""

    run: int
    kind: VerdictKind
    is_certain: bool
    headline: str
    details: tuple[str, ...]
    responsible: tuple[int, ...]
    waiting: tuple[int, ...]
    remedies: tuple[Remedy, ...]


class AddingRow(Struct, frozen=True):
    """Nodes that are being added from a browser, of which ``done`` of ``count`` have joined."""

    number: int  # By which the browser that asked for it knows it.
    state: Literal["adding", "added", "failed"]
    text: str  # What it waits for, or why it has failed.
    done: int
    count: int


class ClusterSnapshot(Struct, frozen=True, kw_only=True):
    """A cluster. Of one that cannot be attached to, only the name, the state and the reason are known.

    ``state`` is the world's phase as its controller reports it (gathering, forming, ready, failed, stopping), or
    starting: a start from a browser of which no more is known; silent: it does not answer; foreign: it has another
    version; orphaned: its controller is gone. Of a cluster of another host, also: connecting: the server logs in there;
    unreachable: it could not; reconnecting: the login is broken, and another is tried again and again.
    """

    name: str
    cluster: str = ""  # Its id, which no other cluster has; "" if it is not known.
    state: str = ""
    reason: str = ""
    version: str = ""
    age: float | UnsetType = UNSET  # Seconds since it was so, for a cluster that does not answer any more.
    starting: str | UnsetType | None = UNSET  # What a start from a browser waits for; None if that start has failed.
    adding: AddingRow | UnsetType = UNSET  # Nodes that are, or have just been, added from a browser.
    has_instructions: bool | UnsetType = UNSET  # A node is waited for which the user has to start.
    backend: str | UnsetType = UNSET
    generation: int | UnsetType = UNSET
    nnodes: int | UnsetType = UNSET
    world_size: int | UnsetType = UNSET
    ready: int | UnsetType = UNSET  # How many ranks are up.
    nodes: tuple[NodeRow, ...] | UnsetType = UNSET
    groups: tuple[GroupRow, ...] | UnsetType = UNSET
    mesh: Mesh | UnsetType | None = UNSET
    left_out: tuple[str, ...] | UnsetType = UNSET
    ranks: tuple[RankRow, ...] | UnsetType = UNSET
    runs: tuple[RunRow, ...] | UnsetType = UNSET
    cell_groups: tuple[GroupSpec, ...] | UnsetType = UNSET
    verdicts: tuple[VerdictRow, ...] | UnsetType = UNSET
    silences: tuple[str, ...] | UnsetType = UNSET

    @property
    def rows(self) -> tuple[RankRow, ...]:
        return self.ranks or ()

    def without_ranks(self) -> Self:
        return replace(self, ranks=UNSET)

    def timeless(self) -> Self:
        """The snapshot without what changes by itself as time passes."""
        runs = tuple(replace(run, seconds=0) for run in self.runs or ())
        return replace(self, ranks=tuple(row.timeless() for row in self.rows), runs=runs, age=UNSET)

    def changed_rows(self, before: Self | None) -> tuple[RankRow, ...]:
        """The rows that differ from those ``before`` in more than elapsed times."""
        known = {row.rank: row.timeless() for row in (before.rows if before is not None else ())}
        return tuple(row for row in self.rows if known.get(row.rank) != row.timeless())


class LoginState(Struct, frozen=True):
    """How far a login to another host is."""

    state: Literal["open", "connecting", "asks"]
    text: str = ""  # ssh's own words: a question, or what it waits for (a key's touch); an installation's line.
    question: int = 0  # The question's number, which belongs to the answer.
    is_secret: bool = True  # What is typed is not shown.


class LaunchOptions(Struct, frozen=True):
    """What a browser can choose from for a start: hosts, launchers, the fields of each one's form, limits, defaults."""

    launchers: list[str]  # The default comes first.
    forms: dict[str, LauncherForm]
    max_ranks: int  # The limit for all clusters together; 0: there is none.
    ranks_here: int
    defaults: dict[str, Any]
    hosts: list[str]  # Those that the user's configuration of ssh names.


class AddingOptions(Struct, frozen=True):
    """The defaults for adding a node: the cluster's launcher and backend, and the number of ranks on its last node."""

    launcher: str
    nproc: int
    backend: str


class RanksText(Struct, frozen=True):
    """A text that is the same on these ranks."""

    ranks: str
    text: str


class StacksSnapshot(Struct, frozen=True):
    """The stacks of paused ranks as one tree, and what the other ranks do."""

    stacks: list[Branch]
    others: list[RanksText]


class ConsoleCommands(Struct, frozen=True):
    """How a terminal is attached to a rank."""

    hostname: str
    command: str  # For a terminal on that host.
    command_here: str  # For a terminal of the Jupyter server; "" if it cannot reach the rank, for ``reason``.
    reason: str


def redacted(text: str) -> str:
    """The text without join lines, which hold keys."""
    return _JOIN_LINE.sub("(a join line; an invitation prints one)", text)


def summary_of(connection: Connection, state: str, reason: str = "") -> ClusterSnapshot:
    """A cluster of which only its connection file is known."""
    c = connection
    return ClusterSnapshot(name=c.name, cluster=c.cluster, state=state, reason=redacted(reason), version=c.version)


def snapshot_of(
    report: StatusReport, observations: Mapping[int, Observation], before: ClusterSnapshot
) -> ClusterSnapshot:
    """All that is known of a cluster; an unobserved rank keeps its device, memory and progress from ``before``."""
    facts, topology = report.facts, report.facts.topology
    # For all ranks at once: a single rank's local rank takes a walk over the nodes.
    local_ranks = {r: i for node in range(topology.nnodes) for i, r in enumerate(topology.ranks_on(node))}
    unreachable = {topology.node_of[p] if topology.node_of else p for p in facts.unreachable}
    hostnames = [topology.host_of_node(node) for node in range(topology.nnodes)]
    earlier = {(row.rank, row.pid): row for row in before.rows}
    on_run = Counter(row.run for row in report.ranks)
    done = {n: 0 if state == "queued" else len(ranks) - on_run[n] for n, state, ranks, _ in report.runs}
    return ClusterSnapshot(
        name=facts.name,
        cluster=before.cluster,
        version=before.version,
        state=facts.phase,
        reason=redacted(sentence(facts.reason, facts.remedies)),
        backend=facts.backend,
        generation=facts.generation,
        nnodes=topology.nnodes,
        world_size=topology.world_size,
        ready=facts.ready,
        nodes=tuple(
            NodeRow(node, hostname, bool(hostname), node in unreachable, tuple(topology.ranks_on(node)))
            for node, hostname in enumerate(hostnames)
        ),
        groups=tuple(GroupRow(name, ranks) for name, ranks in facts.groups.items()),
        mesh=None if facts.mesh is None else Mesh(*facts.mesh),
        left_out=facts.left_out,
        ranks=tuple(
            _row(row, local_ranks.get(row.rank, 0), observations.get(row.rank), earlier.get((row.rank, row.pid)))
            for row in report.ranks
        ),
        runs=tuple(
            RunRow(n, state, str(RankSet(ranks)), len(ranks), done[n], round(seconds, 3))
            for n, state, ranks, seconds in report.runs
        ),
        cell_groups=report.groups,
        verdicts=convert(report.verdicts, tuple[VerdictRow, ...], from_attributes=True),
        silences=report.silences,
    )


def _row(facts: RankFacts, local_rank: int, observation: Observation | None, before: RankRow | None) -> RankRow:
    """A rank's row; ``before`` is the last one of its process."""
    f = facts
    place = (f.rank, f.node_rank, local_rank, f.hostname, f.pid)
    row = RankRow(*place, f.state, f.run, f.last_line, f.fresh, f.death, round(f.death_age, 1))
    if f.paused is not None or f.is_pausing:
        row = replace(row, paused=_pause(f.paused), is_pausing=f.is_pausing or UNSET)
    if before is not None:
        kept = ("device", "rss", "progress", "gpu_name", "gpu_total", "gpu_used", "gpu_own")
        row = replace(row, **{key: getattr(before, key) for key in kept})
    if observation is None:
        return row
    labels = {g.name: g.label or g.name for g in observation.groups}
    progress = tuple(ProgressRow(labels[g.name], g.begun, g.ended) for g in observation.groups)
    is_idle, gpu = observation.doing.kind == "idle", observation.gpu
    use: tuple[Any, ...] = (UNSET,) * 5
    if gpu is not None:
        use = (gpu.name, gpu.total, gpu.used, gpu.own, None if is_idle else gpu.busy)
    return replace(
        row,
        device=observation.device or row.device,  # an agent that answers for its rank knows neither this nor its groups
        rss=observation.rss // _MIB * _MIB,
        doing=None if is_idle else _activity(observation.doing, labels),
        progress=progress or row.progress,
        **dict(zip(("gpu_name", "gpu_total", "gpu_used", "gpu_own", "gpu_busy"), use, strict=True)),
    )


def _pause(paused: RankPaused | None) -> PauseRow | UnsetType:
    if paused is None:
        return UNSET
    at = paused.at
    return PauseRow(paused.run, paused.reason, describe_pause(paused), at.function, at.line, at.file, at.run)


def _activity(now: Activity, labels: Mapping[str, str]) -> ActivityRow:
    """``labels``: of groups, by torch's names."""
    number, group = (now.calls[0].number, labels.get(now.calls[0].group, "")) if now.calls else (0, "")
    pace = (round(now.seconds, 1), None if now.cpu is None else round(now.cpu, 1))
    return ActivityRow(now.kind, now.op, number, group, now.line, now.source, *pace, now.waits_for, now.state)


_DIGITS = 4  # Of a number: more than a chart shows.


# Each series has as many numbers as the node's ``ages``, with None for unknown ones. Quantities that the node lacks,
# such as those of a GPU, are left out.
_Shown = dict[Quantity, tuple[float | None, ...]]


class RankSeries(Struct, frozen=True):
    """What a rank has used."""

    rank: int
    series: _Shown


class NodeSeries(Struct, frozen=True):
    """What a node and its ranks have used; see :class:`jdist.client.measure.resources.NodeUsage`."""

    node: int
    hostname: str
    cores: int
    memory_total: int
    gpus: int
    gpu_memory_total: int  # 0 if it is not known.
    ages: tuple[float, ...]  # When each number was measured, in seconds before the answer; descending, at any distance.
    series: _Shown  # Of the node as a whole.
    ranks: tuple[RankSeries, ...]


class RunMark(Struct, frozen=True):
    """A run, with the ages of its begin and end."""

    run: int
    ranks: str
    began: float
    ended: float | None  # None while it is active.


class ResourcesSnapshot(Struct, frozen=True):
    """All that a chart shows."""

    seconds: float  # How far back it reaches.
    nodes: tuple[NodeSeries, ...]
    runs: tuple[RunMark, ...]
    missing: list[str]  # Sentences about nodes of which nothing is known.


def resources_snapshot(found: Resources) -> ResourcesSnapshot:
    """The numbers as they are sent."""
    nodes = []
    for u in found.nodes.values():
        ages = tuple(round(age, 2) for age in u.ages)
        # Agents that share a node measure at moments of their own; the ages of the first one stand for all of them.
        own = [r for r in found.ranks.values() if r.node == u.node]
        ranks = tuple(RankSeries(r.rank, _shown(r.series, len(ages))) for r in own)
        totals = (u.cores, u.memory, u.gpus, u.gpu_memory)
        nodes.append(NodeSeries(u.node, u.hostname, *totals, ages, _shown(u.series, len(ages)), ranks))
    runs = tuple(RunMark(r.run, str(RankSet(r.ranks)), _age(r.began), r.ended and _age(r.ended)) for r in found.runs)
    return ResourcesSnapshot(found.seconds, tuple(nodes), runs, found.notes)


def _age(seconds: float) -> float:
    return round(seconds, 2)


def _shown(series: Series, count: int) -> _Shown:
    """Return the newest ``count`` numbers of each quantity, with None before them if there are fewer."""
    return {each: _fit(series[each], count) for each in get_args(Quantity) if each in series}


def _fit(values: tuple[float, ...], count: int) -> tuple[float | None, ...]:
    shown = (None if math.isnan(value) else float(f"{value:.{_DIGITS}g}") for value in values[-count:])
    return (None,) * (count - len(values)) + tuple(shown)


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
    nbytes: tuple[int, int] | None  # The least and the greatest on these ranks.
    value: str
    detail: str


class VariableRow(Struct, frozen=True):
    """A name; see :class:`jdist.client.variables.table.Variable`."""

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


def variables_snapshot(table: VariableTable) -> VariablesSnapshot:
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
