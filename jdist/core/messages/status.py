"""Status: clients attach, and learn what the cluster, its ranks and its runs are doing."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from jdist.core.messages.base import Message
from jdist.core.messages.groups import GroupSpec
from jdist.core.observation import Verdict
from jdist.core.remedy import Remedy, sentence
from jdist.core.topology import Topology

OBSERVER = "observer"
"""Kind of a client that only looks on: it does not keep a cluster from its idle end, and hears of runs by Moved."""


class ClientHello(Message, frozen=True):
    """First word of a client."""

    protocol: int
    version: str
    kind: str
    pid: int


class StatusRequest(Message, frozen=True):
    """Send the whole surveyed state, ranks included."""

    request: str


class StopCluster(Message, frozen=True):
    """End everything."""

    request: str = ""


Phase = Literal["gathering", "forming", "ready", "failed", "stopping"]


class ClusterFacts(Message, frozen=True):
    """The cluster in a few words; sent at hello and whenever one of them changes."""

    name: str
    phase: Phase
    generation: int
    backend: str
    nnodes: int
    """Places: one for each agent."""
    nproc_per_node: tuple[int, ...]
    """Of the nodes that are here; 0 for one that is not."""
    hostnames: tuple[str, ...]
    """"" for a node that is not here."""
    ready: int
    """Ranks whose worker is up."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    mesh: tuple[tuple[str, ...], tuple[int, ...]] | None = None
    reason: str = ""
    remedies: tuple[Remedy, ...] = ()
    """Suggested actions against ``reason``."""
    init_seconds: float = 0.0
    unreachable: tuple[int, ...] = ()
    """Nodes that have not been heard of for a while; their ranks are kept until the node's grace is over."""
    is_by_task: bool = False
    """Each place is a launcher's task, and one rank."""
    node_of: tuple[int, ...] = ()
    """The node that each place is on; empty: each is one."""
    launcher_names: tuple[str, ...] = ()
    """What their launcher calls the nodes, also those that are gone; "" where it has no name for one."""
    left_out: tuple[str, ...] = ()
    """Nodes without which the world was formed, as they were numbered then, and why; a sentence each."""

    @property
    def topology(self) -> Topology:
        return Topology(self.nproc_per_node, self.hostnames, self.node_of)


class Attached(Message, frozen=True):
    """Answer to a hello; ``liveness_name`` is the name of the peer's liveness connection (see wire/bulk/server)."""

    liveness_name: str
    cluster: str
    version: str


class RankFacts(Struct, frozen=True):
    """One rank's row."""

    rank: int
    node_rank: int
    hostname: str
    pid: int
    state: str
    run: int
    last_line: str
    fresh: bool
    """Replaced since the cluster started: earlier names are lost."""
    death: str = ""
    """Why its last process ended; "" if it still has its first."""
    death_age: float = 0.0
    """Seconds since then."""


class StatusReport(Message, frozen=True):
    """Answer to Survey."""

    request: str
    facts: ClusterFacts
    ranks: tuple[RankFacts, ...]
    runs: tuple[tuple[int, str, tuple[int, ...], float], ...]
    """``(number, state, ranks, seconds)`` of unfinished runs."""
    groups: tuple[GroupSpec, ...] = ()
    """Groups that cells made with new_group."""
    verdicts: tuple[Verdict, ...] = ()
    """Of the runs that do not move."""
    silences: tuple[str, ...] = ()
    """A sentence for each node that is cut off."""


class RequestRefused(Message, frozen=True):
    """A request that cannot be done, and why."""

    request: str
    reason: str
    remedies: tuple[Remedy, ...] = ()


class Notice(Message, frozen=True):
    """Something the user must know; ``run`` 0: not about one run."""

    text: str
    run: int = 0
    remedies: tuple[Remedy, ...] = ()

    def __str__(self) -> str:
        return sentence(self.text, self.remedies)


class RunsChanged(Message, frozen=True):
    """To those that look on: a run has been accepted, has begun or ended, or has another verdict; a Survey tells."""


class Stopped(Message, frozen=True):
    """The cluster is gone."""

    reason: str
    remedies: tuple[Remedy, ...] = ()
