"""Status: clients attach, and learn what the cluster, its ranks and its runs are doing."""

from typing import Literal

from msgspec import Struct, field

from jdist.core.errors import Remedy, sentence
from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.membership import GroupSpec
from jdist.core.messages.observation import Verdict
from jdist.core.messages.saving import SaveStatus
from jdist.core.topology import Topology

OBSERVER = "observer"  # A client that only observes: it gets RunsChanged, and does not prevent the idle timeout.


class Origin(Struct, frozen=True):
    """The notebook that a cluster belongs to, and the last of its kernels that used the cluster."""

    notebook: str  # Its path, as the front end names it; "" if that is unknown.
    directory: str  # In which its kernel was started.
    hostname: str
    pid: int  # The kernel's.
    started: int = 0  # The kernel's start time: with it, another process with its pid is not taken for it.
    is_shared: bool = False  # Another program has attached to the cluster since.

    def is_of_same_notebook(self, other: "Origin") -> bool:
        """Whether both name the same notebook, or, where it has no name, the same directory."""
        if self.hostname != other.hostname:
            return False
        if self.notebook or other.notebook:
            return self.notebook == other.notebook
        return self.directory == other.directory


class SetOrigin(Message, frozen=True):
    """Have the controller record which notebook the cluster belongs to; None: to none any more."""

    origin: Origin | None


class ClientHello(Message, frozen=True):
    """The first message of a client."""

    protocol: int
    version: str
    kind: str
    pid: int


class StatusRequest(Message, frozen=True):
    """Ask for a StatusReport."""

    request: str


class StopCluster(Message, frozen=True):
    """End everything; ``now``: kill the ranks, whose exit functions and threads get no time to finish."""

    now: bool = False


Phase = Literal["gathering", "forming", "ready", "failed", "stopping"]


class ClusterFacts(Message, frozen=True):
    """The most important facts about the cluster; sent after the hello and when one of them changes."""

    name: str
    phase: Phase
    generation: int
    backend: str
    nnodes: int  # Number of places, one for each agent.
    nproc_per_node: tuple[int, ...]  # Ranks at each place; 0 if it is not attached.
    hostnames: tuple[str, ...]  # Host name at each place; "" if it is not attached.
    ready: int  # Ranks whose worker is up.
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    mesh: tuple[tuple[str, ...], tuple[int, ...]] | None = None
    reason: str = ""
    remedies: tuple[Remedy, ...] = ()  # Suggested actions against `reason`.
    init_seconds: float = 0.0
    unreachable: tuple[int, ...] = ()  # Nodes without heartbeats; their ranks are kept during the node's grace.
    is_by_task: bool = False  # Each place is a launcher's task, and one rank.
    node_of: tuple[int, ...] = ()  # The node that each place is on; empty: each is one.
    launcher_names: tuple[str, ...] = ()  # The launcher's names for the nodes, present or not; "": it has none.
    left_out: tuple[str, ...] = ()  # For each node without which the world was formed, a sentence that says why.
    paused: tuple[int, ...] = ()  # Ranks that are paused.

    @property
    def topology(self) -> Topology:
        return Topology(self.nproc_per_node, self.hostnames, self.node_of)


class Attached(Message, frozen=True):
    """Answer to a hello; ``liveness_name`` is the name of the peer's liveness connection (see wire/bulk/server).

    ``pid`` is the controller's process id. The connection file may still contain that of a controller that has died.
    """

    liveness_name: str
    cluster: str
    version: str
    pid: int


class RankFacts(Struct, frozen=True):
    """One rank's row."""

    rank: int
    node_rank: int
    hostname: str
    pid: int
    state: str
    run: int
    last_line: str
    fresh: bool  # It was replaced since the cluster started: its earlier names are lost.
    death: str = ""  # Why its last process ended; "" if it still has its first.
    death_age: float = 0.0  # Seconds since then.
    paused: RankPaused | None = None  # Where it is paused.
    is_pausing: bool = False  # It was asked to pause, and has not yet: it is in a collective, or in other C code.


class StatusReport(Message, frozen=True):
    """Answer to StatusRequest."""

    request: str
    facts: ClusterFacts
    ranks: tuple[RankFacts, ...]
    runs: tuple[tuple[int, str, tuple[int, ...], float], ...]  # `(number, state, ranks, seconds)` of unfinished runs.
    groups: tuple[GroupSpec, ...] = ()  # Groups that cells created with new_group.
    verdicts: tuple[Verdict, ...] = ()  # One for each run that makes no progress.
    silences: tuple[str, ...] = ()  # A sentence for each unreachable node.
    saves: SaveStatus = SaveStatus()
    clients: tuple[str, ...] = ()  # The kind of each attached client, also of the one that asks, but of no observer.


class RequestRefused(Message, frozen=True):
    """A request that cannot be done, and why."""

    request: str
    reason: str
    remedies: tuple[Remedy, ...] = ()


class Notice(Message, frozen=True):
    """A text for the user; ``run`` 0: it is not about one run."""

    text: str
    run: int = 0
    remedies: tuple[Remedy, ...] = ()

    def __str__(self) -> str:
        return sentence(self.text, self.remedies)


class RunsChanged(Message, frozen=True):
    """For observers: a run was accepted, began or ended, or its verdict changed; see StatusReport."""


class Stopped(Message, frozen=True):
    """The cluster is gone."""

    reason: str
    remedies: tuple[Remedy, ...] = ()


ClientMessage = ClientHello | StatusRequest | StopCluster
ToClient = Attached | ClusterFacts | StatusReport | RequestRefused | Notice | RunsChanged | Stopped
