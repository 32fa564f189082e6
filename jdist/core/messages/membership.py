"""Membership: nodes, workers and ranks join, leave and are replaced; the world and its groups are formed.

A worker has an id for life, by which the controller and the agent name it. Its processes may be replaced
(*incarnations*), and FormWorld assigns its rank in each generation. In messages between an agent and clients, ``rank``
and ``ranks`` are that id on the way between agent and controller, which replaces it by the present rank
(controller/model/world).
"""

from msgspec import Struct

from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.nodes import Lack
from jdist.core.messages.observation import Observation
from jdist.core.messages.saving import KeepAutosave


class GroupSpec(Struct, frozen=True):
    """A process group as it was requested: global ranks, backend (None: the world's), name."""

    ranks: tuple[int, ...]
    backend: str | None = None
    name: str = ""
    splits: tuple[tuple[int, ...], ...] = ()  # All parts, if split_group of the world made it; no `ranks` then.
    is_gone: bool = False  # It has lost a member for good and is not created again, but counted: torch numbers groups.
    timeout: float = 0.0  # Seconds for a collective of its own, as the user asked for; 0: no limit.


class GroupCreated(Message, frozen=True):
    """A group or mesh has been created."""

    text: str


class MakeGroup(Message, frozen=True):
    """Create a named group over ``ranks``, now and after every re-forming."""

    request: str
    name: str
    ranks: tuple[int, ...]


class MakeMesh(Message, frozen=True):
    """Create a mesh such as names ("dp", "tp"), sizes (2, 2)."""

    request: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]


class StoreUp(Message, frozen=True):
    """The rendezvous store listens."""

    host: str
    port: int


class StoreDown(Message, frozen=True):
    """The rendezvous store could not be started, or died."""

    reason: str


class CarriedNames(Struct, frozen=True):
    """The names that a rank has loaded from the process before it, and those that were lost."""

    count: int  # Number of names.
    lost: tuple[tuple[str, str], ...] = ()  # What could not be handed over, and why: `("gen", "generator")`.
    error: str = ""  # Why there is nothing, if it could not be loaded.


class WorldFormed(Message, frozen=True):
    """A worker holds the generation."""

    worker: int
    generation: int
    device: str
    listeners: tuple[tuple[str, int], ...]
    notices: tuple[str, ...] = ()
    wants_reform: bool = False  # It has functions to be called now that the world was formed again.
    carried: CarriedNames | None = None  # If it is new in the world and takes the place of a process that failed.


class WorldFailed(Message, frozen=True):
    """A worker could not join the generation."""

    worker: int
    generation: int
    reason: str


class GroupMade(Message, frozen=True):
    """A cell created a process group: its index on the rank, its spec, and the sockets on which it listens."""

    worker: int
    generation: int
    index: int
    spec: GroupSpec
    listeners: tuple[tuple[str, int], ...]


class StartStore(Message, frozen=True):
    """Start the rendezvous store on this node; ``port`` 0: any free one."""

    host: str
    port: int


class FormWorld(Message, frozen=True):
    """Form a generation of the world."""

    generation: int
    workers: tuple[int, ...]  # Their ids, by rank: this is how a worker learns its rank.
    backend: str
    init_method: str
    store_host: str
    store_port: int
    world_size: int
    nproc_per_node: tuple[int, ...]
    timeout: float
    replay: tuple[GroupSpec, ...]
    named: dict[str, tuple[int, ...]]
    mesh: tuple[tuple[str, ...], tuple[int, ...]] | None
    cut: tuple[tuple[str, int], ...]  # Listeners of the last generation, whose connections are closed first.
    inheriting: tuple[int, ...] = ()  # Workers that will load handed-over names: every rank rebuilds DDP's buckets.
    is_after_abort: bool = False  # A run was aborted in the last generation, perhaps in the middle of a step.
    node_of: tuple[int, ...] = ()  # The node that each place is on; empty: each is one (see core/topology).


class NodeFacts(Struct, frozen=True):
    """Facts about a node that its agent knows before any worker runs."""

    hostname: str
    pid: int
    python: str
    torch: str
    jdist: str
    gpus: int
    cpus: int
    address: str  # The address of the interface that reaches the controller, or other nodes if it is carried.
    reached: str = ""  # The controller's address through which it was reached; "" if it is carried.
    network: str = ""  # Equal where processes share a machine's network; containers' host names do not show that.
    launcher_name: str = ""  # The launcher's name for the node; "" if it has none.
    torch_build: str | None = None  # What its torch was built for: "CUDA 12.8", "ROCm 6.4", "CPU"; None if unknown.
    is_carried: bool = False  # Its connections to the controller travel through a login (see launch/tunnel_keeper).


class Invite(Message, frozen=True):
    """Ask the controller for a new line with which agents join."""

    is_remote: bool = False  # The line is also for agents on other hosts.
    seconds: float = 0.0  # The line's lifetime; 0: that of the cluster's settings.
    revokes: bool = False  # Revoke all earlier lines.


class Invited(Message, frozen=True):
    """The join line. It contains keys, so an agent reads it from its standard input."""

    line: str


class PlaceOpened(Message, frozen=True):
    """A place was opened for one more node."""

    node_rank: int


class Resized(Message, frozen=True):
    """The world has another size and has been formed again; as text, what has changed, a line each."""

    world_size: int
    renumbered: dict[int, int]  # `{old rank: new rank}` of every rank that lived on.
    added: tuple[int, ...]  # Ranks that are new; only setup cells have been run there.
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.notes)


class Restart(Message, frozen=True):
    """Replace the processes of ``ranks``; their namespaces are lost."""

    request: str
    ranks: tuple[int, ...]


class AddNode(Message, frozen=True):
    """Open a place for one more node. Answered by PlaceOpened, and by Resized once its ranks are in the world."""

    request: str
    nproc: int = 0  # Number of its ranks; 0: as many as on the last node.
    timeout: float = 120.0  # Seconds for the node to attach.


class AbortAddNode(Message, frozen=True):
    """Close the place that the AddNode of this ``request`` has opened, unless a node has taken it."""

    request: str


class RemoveRanks(Message, frozen=True):
    """End ``ranks`` for good and close the gaps that they leave in the numbering. Answered by Resized."""

    request: str
    ranks: tuple[int, ...]


class DropNodes(Message, frozen=True):
    """Form the world without ``nodes``, which are not available (``{node rank: reason}``). Answered by Resized.

    Only before the world was first formed, and with at least ``min_nodes`` nodes left.
    """

    request: str
    nodes: dict[int, str]


class Owner(Struct, frozen=True):
    """An agent that has a place, with its workers."""

    workers: tuple[int, ...]
    is_carried: bool = False  # Its connections travel through a login, as `NodeFacts` says.


class HeldWorker(Struct, frozen=True):
    """A worker as its agent knows it."""

    worker: int
    incarnation: int
    pid: int  # 0: its process has ended.
    is_up: bool
    generation: int = 0
    run: int = 0  # The cell that it runs; 0: none.
    groups: tuple[GroupSpec, ...] = ()
    listeners: tuple[tuple[str, int], ...] = ()
    is_fresh: bool = False  # It has taken the place of a process whose names are lost.
    inherits: bool = False  # It takes over the names of the process before it, once it is in the world.
    paused: RankPaused | None = None  # Where `run` is paused; None: it is not.
    resumes: int = 0  # How many `ResumeRanks` it was sent for `run`.
    is_aborted: bool = False  # `run` was interrupted, by whatever means.
    inner_run: int = 0  # The cell that it runs in the frame of `run`, which is paused; 0: none.
    is_awaited: bool = False  # Its process starts once the one before has handed its names over, or has ended.


class HeldGeneration(Struct, frozen=True):
    """The state of a node: all that another controller needs to go on with it."""

    workers: tuple[HeldWorker, ...]
    form: FormWorld | None  # The last one: the world's shape, named groups and mesh.
    store: tuple[str, int] | None
    last_run: int
    setup: tuple[tuple[int, str, tuple[int, ...]], ...]  # `(run, code, workers)` of setup cells, oldest first.
    ended: tuple[int, ...] = ()  # Workers of any node that were removed since `form`: it still names them.
    autosave: KeepAutosave = KeepAutosave(None)


class LauncherTask(Struct, frozen=True):
    """One of the processes that a launcher such as mpirun, srun or torchrun has started together."""

    launcher: str
    rank: int
    size: int  # Number of processes on all nodes.
    local_rank: int = -1  # -1 here and below: not reported by the launcher.
    local_size: int = 0  # 0: not reported by the launcher.
    node_rank: int = -1
    gpu: int = -1  # The visible GPU of this process alone; -1: there is none, or other tasks share it.


class Enrol(Message, frozen=True):
    """The holder of an invitation sends the public half of the key with which it authenticates from now on."""

    protocol: int
    version: str
    key: str


class Enrolled(Message, frozen=True):
    """The key was accepted."""


class AgentHello(Message, frozen=True):
    """The first message of an agent. ``nproc`` 0: the controller decides. ``node_rank`` -1: any place."""

    protocol: int
    version: str
    facts: NodeFacts
    nproc: int = 0
    node_rank: int = -1  # The place it had, if it had one and comes back.
    held: HeldGeneration | None = None  # Its state under an earlier controller, or before it was dropped.
    task: LauncherTask | None = None  # If a launcher has started the agent as one of its tasks.


class WorkerUp(Message, frozen=True):
    """A worker is ready for cells."""

    worker: int
    pid: int
    incarnation: int
    inherits: bool = False  # It takes over the names of the process before it, once it is in the world.
    why_fresh: str = ""  # Why that one was not able to hand them over, if it was asked to.


class WorkerDown(Message, frozen=True):
    """A worker's process ended, or is about to: ``reason`` is such as "killed by signal 9 (SIGKILL)"."""

    worker: int
    incarnation: int
    reason: str
    observation: Observation | None = None  # What its main thread was calling when it failed, if that is known.
    hands_over: bool = False  # It is still handing its names over to the process that takes its place.
    last_run: int | None = None  # The last run whose cell its node had begun by then; None: not known.


class WorkerFails(Message, frozen=True):
    """A signal is about to end the worker's process, which hands its names over before."""

    signal: int
    observation: Observation | None


class SavingNames(Message, frozen=True):
    """The names are being saved: sent again and again while that makes progress."""


class NamesLoaded(Message, frozen=True):
    """A worker has taken over the names of the process before it, as far as that is possible."""


class NamesSaved(Message, frozen=True):
    """The names have been saved in the memory whose descriptor comes along."""

    nbytes: int


class RequestHandover(Message, frozen=True):
    """The agent asks a worker whose main thread cannot be freed to hand its names over, and to end."""


class RequestNames(Message, frozen=True):
    """A worker asks for what the process before it saved. Answered by NamesSaved, or SavingNames for nothing."""


class LivenessLost(Message, frozen=True):
    """The liveness connection of this agent or client broke, or could not be dialled: it needs a name for another."""


class AgentLeaving(Message, frozen=True):
    """The agent ends because it was asked to from outside; ``reason`` says by whom, if known."""

    reason: str


class Heartbeat(Message, frozen=True):
    """The agent is alive; sent once a second."""


class StartWorker(Message, frozen=True):
    """Start a process for the worker, and end what is left of its last one. ``rank``: until a world is formed."""

    worker: int
    rank: int
    incarnation: int
    keeps_names: bool = False  # The last one is first asked to hand its names over, if it still lives.


class Welcome(Message, frozen=True):
    """The agent's place in the world, and its limits."""

    liveness_name: str
    node_rank: int
    nnodes: int
    nproc: int
    first_rank: int
    agent_grace: float  # Seconds without the controller after which the agent ends its workers and itself.
    end_grace: float  # Seconds for a worker to end by itself before it is killed.
    output_lines: int  # Lines of a rank's stream per run that are sent on; the rest is counted.
    warm: bool  # Whether an idle node imports modules ahead that its next workers need.
    workers: tuple[StartWorker, ...] = ()  # Workers to start in place of the node's present ones; empty: those go on.
    address: str = ""  # The address at which other nodes reach this one, if that is not the one that it reported.
    is_task: bool = False  # The place is a launcher's task: its one rank shares the host with other tasks.
    log_level: str = ""  # JDIST_LOG as it was set at the cluster's start, for an agent that was started without it.
    keeps_launcher: bool = False  # Workers get the launcher's variables, with which MPI finds the launcher again.


class LivenessRenewed(Message, frozen=True):
    """A liveness connection broke: dial another one of this name (see wire/bulk/server)."""

    name: str


class Rejected(Message, frozen=True):
    """The agent was not accepted, and why."""

    reason: str


class EndWorkers(Message, frozen=True):
    """End these workers for good: their ranks have been removed from the world. Sent to every node that is left."""

    workers: tuple[int, ...]


class Shutdown(Message, frozen=True):
    """End: a worker, or an agent with all its workers. Exit functions and threads get ``grace`` seconds to finish."""

    grace: float = 0.0
    at: float = 0.0  # As in `AbortRun`; for an agent, 0.


class EndOverdue(Message, frozen=True):
    """A worker did not end within its grace and is killed; ``doing`` says what it was doing."""

    worker: int
    as_rank: int  # The rank that it had last.
    grace: float
    doing: str


class WorkerHello(Message, frozen=True):
    """The worker's jdist thread runs."""

    worker: int
    pid: int
    lacks: tuple[Lack, ...] = ()  # What the process knows to lack in its torch.


_Resizing = Restart | AddNode | AbortAddNode | RemoveRanks | DropNodes
ClientMessage = _Resizing | MakeGroup | MakeMesh | LivenessLost
ToClient = LivenessRenewed
_Formation = StoreUp | StoreDown | WorldFormed | WorldFailed | GroupMade
_Lives = AgentHello | WorkerUp | WorkerDown | EndOverdue | LivenessLost | AgentLeaving | Heartbeat
AgentMessage = _Lives | _Formation
ToAgent = Welcome | LivenessRenewed | Rejected | StartWorker | EndWorkers | Shutdown | StartStore | FormWorld
ToUnauthenticated = Enrolled | Rejected
WorkerMessage = WorkerHello | EndOverdue | WorldFormed | WorldFailed
ToWorker = RequestHandover | Shutdown
# At an agent's socket for names, both ways.
Handover = WorkerFails | SavingNames | NamesSaved | RequestNames | NamesLoaded
RankReplyBody = Invited | PlaceOpened | Resized
