"""Clients: what a client says to the controller, and what it hears."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from jdist.core.messages.base import GroupSpec, Message
from jdist.core.messages.nodes import AskNodes, NodeAnswer
from jdist.core.messages.output import Done, InputRequest, Output
from jdist.core.messages.questions import Answer, Ask
from jdist.core.topology import Topology
from jdist.core.verdict import Verdict

WATCHING = "server"
"""Kind of a client that only looks on: it does not keep a cluster from its idle end, and hears of runs by Moved."""


class ClientHello(Message, frozen=True):
    """First word of a client."""

    protocol: int
    version: str
    kind: str
    pid: int


class RunCell(Message, frozen=True):
    """Run ``code`` on ``ranks``; ``timeout`` in seconds from its start."""

    request: str
    code: str
    ranks: tuple[int, ...]
    timeout: float | None = None
    allow_stdin: bool = False
    is_setup: bool = False
    is_internal: bool = False
    """jdist's own cell: not counted in ``Out``, not stored in history."""


class Interrupt(Message, frozen=True):
    """Stop what runs on ``ranks`` (empty: everywhere), or one run."""

    request: str = ""
    ranks: tuple[int, ...] = ()
    run: int = 0


class Restart(Message, frozen=True):
    """Replace the processes of ``ranks``; their namespaces are lost."""

    request: str
    ranks: tuple[int, ...]


class AddNode(Message, frozen=True):
    """Open a place for one more node. Answered by Placed, and by Resized once its ranks are in the world."""

    request: str
    nproc: int = 0
    """Its ranks; 0: as many as the last node has."""
    timeout: float = 120.0
    """Seconds for it to come."""


class RemoveRanks(Message, frozen=True):
    """End ``ranks`` for good and close the gaps that they leave in the numbering. Answered by Resized."""

    request: str
    ranks: tuple[int, ...]


class LeaveOut(Message, frozen=True):
    """Form the world without ``nodes``, which cannot be had (why, by node rank). Answered by Resized.

    For a world that has not been numbered yet, and not for fewer nodes than it was started for at the least.
    """

    request: str
    nodes: dict[int, str]


class MakeGroup(Message, frozen=True):
    """Make a named group over ``ranks``, and again after every re-forming."""

    request: str
    name: str
    ranks: tuple[int, ...]


class MakeMesh(Message, frozen=True):
    """Make the named mesh, e.g. names ("dp", "tp"), sizes (2, 2)."""

    request: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]


class Survey(Message, frozen=True):
    """Send the whole surveyed state, ranks included."""

    request: str


class InputReply(Message, frozen=True):
    """What the user typed."""

    run: int
    rank: int
    text: str


class StopCluster(Message, frozen=True):
    """End everything."""

    request: str = ""


ClientMessage = (
    ClientHello
    | RunCell
    | Interrupt
    | Restart
    | AddNode
    | RemoveRanks
    | LeaveOut
    | MakeGroup
    | MakeMesh
    | Survey
    | InputReply
    | StopCluster
    | Ask
    | AskNodes
)


# ---------------------------------------------------------------- controller ──► client


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
    init_seconds: float = 0.0
    cut_off: tuple[int, ...] = ()
    """Nodes that have not been heard of for a while; their ranks are kept until the node's grace is over."""
    is_by_task: bool = False
    """Each place is a launcher's task, and one rank."""
    node_of: tuple[int, ...] = ()
    """The node that each place is on; empty: each is one."""
    called: tuple[str, ...] = ()
    """What their launcher calls the nodes, also those that are gone; "" where it has no name for one."""
    left_out: tuple[str, ...] = ()
    """Nodes without which the world was formed, as they were numbered then, and why; a sentence each."""

    @property
    def topology(self) -> Topology:
        return Topology(self.nproc_per_node, self.hostnames, self.node_of)


class Attached(Message, frozen=True):
    """Answer to a hello; ``lifeline`` is what the peer names its lifeline connection with (see wire/bulk/server)."""

    lifeline: str
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


class Surveyed(Message, frozen=True):
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


class Accepted(Message, frozen=True):
    """The run's number; ``behind`` are the runs it waits for."""

    request: str
    run: int
    behind: tuple[int, ...] = ()


class Refused(Message, frozen=True):
    """A request that cannot be done, and why."""

    request: str
    reason: str


class Started(Message, frozen=True):
    """The run has been sent to its ranks."""

    run: int


class RunEnded(Message, frozen=True):
    """Every rank is done. ``reason``: "", "timeout" or "interrupted". ``seconds`` since it was started."""

    run: int
    reason: str
    seconds: float
    first_failure: int = -1


class Judged(Message, frozen=True):
    """Why a run does not move; None: what was said of it before holds no more."""

    run: int
    verdict: Verdict | None


class Notice(Message, frozen=True):
    """Something the user must know; ``run`` 0: not about one run."""

    text: str
    run: int = 0


class Moved(Message, frozen=True):
    """To those that look on: a run has been accepted, has begun or ended, or has another verdict; a Survey tells."""


class Stopped(Message, frozen=True):
    """The cluster is gone."""

    reason: str


ToClient = (
    Attached
    | ClusterFacts
    | Surveyed
    | Accepted
    | Refused
    | Started
    | Output
    | Done
    | RunEnded
    | InputRequest
    | Judged
    | Notice
    | Moved
    | Answer
    | NodeAnswer
    | Stopped
)
