"""Membership: nodes, workers and ranks join, leave, are replaced and are numbered."""

from __future__ import annotations

from msgspec import Struct

from jdist.core.messages.base import Message
from jdist.core.messages.groups import FormWorld, GroupSpec


class NodeFacts(Struct, frozen=True):
    """What an agent knows about its node before any worker runs."""

    hostname: str
    pid: int
    python: str
    torch: str
    jdist: str
    gpus: int
    cpus: int
    address: str
    """The address of the interface that reaches the controller."""
    reached: str = ""
    """The controller's own, of which it may have several."""
    network: str = ""
    """The same for processes on one machine that have one network: containers may have one host name, or several."""
    launcher_name: str = ""
    """What its launcher calls it; "" if that says nothing."""
    torch_build: str | None = None
    """What its torch was built for: "CUDA 12.8", "ROCm 6.4", "CPU"; None where that is not known."""


class Invite(Message, frozen=True):
    """Ask the controller for a new line with which agents join."""

    is_remote: bool = False
    """For agents on other hosts, too."""
    seconds: float = 0.0
    """For which it can be used; 0: as the cluster's settings say."""
    revokes: bool = False
    """All lines before it are void."""


class Invited(Message, frozen=True):
    """The line. Keys are in it: it reaches an agent through its standard input."""

    line: str


class PlaceOpened(Message, frozen=True):
    """A place is open for one more node."""

    node_rank: int


class Resized(Message, frozen=True):
    """The world has another size and has been formed again; as text, what has changed, a line each."""

    world_size: int
    renumbered: dict[int, int]
    """``{old rank: new rank}`` of every rank that lived on."""
    added: tuple[int, ...]
    """Ranks that are new; only setup cells have been run there."""
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.notes)


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


class DropNodes(Message, frozen=True):
    """Form the world without ``nodes``, which cannot be had (why, by node rank). Answered by Resized.

    For a world that has not been numbered yet, and not for fewer nodes than it was started for at the least.
    """

    request: str
    nodes: dict[int, str]


class HeldRank(Struct, frozen=True):
    """A rank as its agent knows it."""

    rank: int
    incarnation: int
    pid: int
    """0: its process has ended."""
    is_up: bool
    generation: int = 0
    run: int = 0
    """The cell that it runs; 0: none."""
    groups: tuple[GroupSpec, ...] = ()
    listeners: tuple[tuple[str, int], ...] = ()


class HeldGeneration(Struct, frozen=True):
    """What a node holds: all that another controller needs to go on with it."""

    ranks: tuple[HeldRank, ...]
    form: FormWorld | None
    """The last one: the world's shape, named groups and mesh."""
    store: tuple[str, int] | None
    last_run: int
    setup: tuple[tuple[int, str, tuple[int, ...]], ...]
    """``(run, code, ranks)`` of the cells that were remembered here, oldest first."""


class LauncherTask(Struct, frozen=True):
    """A process among those that a launcher such as mpirun, srun or torchrun has started together."""

    launcher: str
    rank: int
    size: int
    """How many there are, on all nodes."""
    local_rank: int = -1
    """-1 here and below: the launcher does not say."""
    local_size: int = 0
    """0: the launcher does not say."""
    node_rank: int = -1
    gpu: int = -1
    """The visible GPU that is its own; -1: none, or other tasks share it."""


class Enrol(Message, frozen=True):
    """A newcomer that holds an invitation: from now on it proves itself with a key of its own, of which this is the
    public half.
    """

    protocol: int
    version: str
    key: str


class Enrolled(Message, frozen=True):
    """The key is known."""


class AgentHello(Message, frozen=True):
    """First word of an agent. ``nproc`` 0: as the controller says. ``node_rank`` -1: any place."""

    protocol: int
    version: str
    facts: NodeFacts
    nproc: int = 0
    node_rank: int = -1
    """The place it had, if it had one and comes back."""
    held: HeldGeneration | None = None
    """What it has under an earlier controller, or did before it was given up."""
    task: LauncherTask | None = None
    """If a launcher has started it together with others."""


class WorkerUp(Message, frozen=True):
    """A rank's worker is ready for cells."""

    rank: int
    pid: int
    incarnation: int


class WorkerDown(Message, frozen=True):
    """A rank's process ended; ``reason`` as "killed by signal 9 (SIGKILL)"."""

    rank: int
    incarnation: int
    reason: str


class Renumbered(Message, frozen=True):
    """What the agent says from here on counts its ranks as the oldest Renumber did that it had not answered yet."""


class LivenessLost(Message, frozen=True):
    """The agent's liveness connection broke, or could not be dialled: it needs the name of another."""


class AgentLeaving(Message, frozen=True):
    """The agent was told from outside to end, and does; ``reason`` says by whom, as far as it knows."""

    reason: str


class Heartbeat(Message, frozen=True):
    """The agent lives. One a second, whatever the number of ranks."""


class Welcome(Message, frozen=True):
    """The agent's place in the world, and the limits it keeps."""

    liveness_name: str
    node_rank: int
    nnodes: int
    nproc: int
    first_rank: int
    agent_grace: float
    """Seconds without the controller after which the agent ends its workers and itself."""
    output_lines: int
    """Lines of a rank's stream per run that travel; the rest is counted."""
    warm: bool
    """Whether an idle node imports ahead what its next workers need."""
    incarnations: tuple[int, ...] = ()
    """Of the node's ranks, in order: workers to be started in place of what there is; empty: all go on as they are."""
    address: str = ""
    """At which the other nodes reach this one, if that is not the address which it has told of."""
    is_task: bool = False
    """The place is a launcher's task: its one rank shares the host with the other tasks'."""
    log_level: str = ""
    """As JDIST_LOG was set where the cluster was started; for an agent that was started with nothing of its own."""
    keeps_launcher: bool = False
    """The workers get to see the launcher's variables: by them MPI finds the launcher again."""


class LivenessRenewed(Message, frozen=True):
    """A liveness connection broke: dial another of this name (see wire/bulk/server)."""

    name: str


class Rejected(Message, frozen=True):
    """The agent is not wanted, and why."""

    reason: str


class ReplaceWorker(Message, frozen=True):
    """Kill the worker of ``rank`` and start a fresh one."""

    rank: int
    incarnation: int


class Renumber(Message, frozen=True):
    """The world has another size: the node's new place in it, and its ranks' new numbers.

    Ranks that are not named end. Between cells only; what follows counts in the new numbers.
    """

    node_rank: int
    nproc_per_node: tuple[int, ...]
    ranks: dict[int, int]
    """``{old: new}``."""
    named: dict[str, tuple[int, ...]]
    """The named groups that are left."""
    node_of: tuple[int, ...] = ()
    """As in Form."""


class Shutdown(Message, frozen=True):
    """End the workers and yourself."""


ToUnauthenticated = Enrolled | Rejected


class WorkerHello(Message, frozen=True):
    """The worker's jdist thread runs."""

    rank: int
    pid: int


class BeRank(Message, frozen=True):
    """The worker has another rank from its next generation on."""

    rank: int
