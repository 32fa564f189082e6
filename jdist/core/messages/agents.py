"""Agents and workers: what passes between the controller and a node, and inside the node."""

from __future__ import annotations

from msgspec import Struct

from jdist.core.messages.base import GroupSpec, Message, NodeFacts
from jdist.core.messages.clients import InputReply
from jdist.core.messages.nodes import AskNodes, NodeAnswer
from jdist.core.messages.output import Done, InputRequest, Output
from jdist.core.messages.questions import Answer, Ask


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


class Held(Struct, frozen=True):
    """What a node holds: all that another controller needs to go on with it."""

    ranks: tuple[HeldRank, ...]
    form: Form | None
    """The last one: the world's shape, named groups and mesh."""
    store: tuple[str, int] | None
    last_run: int
    setup: tuple[tuple[int, str, tuple[int, ...]], ...]
    """``(run, code, ranks)`` of the cells that were remembered here, oldest first."""


class Task(Struct, frozen=True):
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
    held: Held | None = None
    """What it has under an earlier controller, or did before it was given up."""
    task: Task | None = None
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


class StoreUp(Message, frozen=True):
    """The rendezvous store listens."""

    host: str
    port: int


class StoreDown(Message, frozen=True):
    """The rendezvous store could not be started, or died."""

    reason: str


class Formed(Message, frozen=True):
    """A rank holds the generation."""

    rank: int
    generation: int
    device: str
    listeners: tuple[tuple[str, int], ...]
    notices: tuple[str, ...] = ()
    wants_reform: bool = False
    """It has functions that are to be called now that the world has been formed again."""


class FormFailed(Message, frozen=True):
    """A rank could not join the generation."""

    rank: int
    generation: int
    reason: str


class GroupMade(Message, frozen=True):
    """A cell made a process group: its place in the rank's list, what it is, and the sockets it listens on."""

    rank: int
    generation: int
    index: int
    spec: GroupSpec
    listeners: tuple[tuple[str, int], ...]


class Stalled(Message, frozen=True):
    """A rank's main thread has been blocked in one place of torch.distributed for a moment.

    Said once for each place; what became of it is found out by looking.
    """

    rank: int
    run: int


class Renumbered(Message, frozen=True):
    """What the agent says from here on counts its ranks as the oldest Renumber did that it had not answered yet."""


class NoLifeline(Message, frozen=True):
    """The agent's lifeline broke, or could not be dialled: it needs the name of another."""


class Leaving(Message, frozen=True):
    """The agent was told from outside to end, and does; ``reason`` says by whom, as far as it knows."""

    reason: str


class Beat(Message, frozen=True):
    """The agent lives. One a second, whatever the number of ranks."""


AgentMessage = (
    AgentHello
    | WorkerUp
    | WorkerDown
    | StoreUp
    | StoreDown
    | Formed
    | FormFailed
    | GroupMade
    | Output
    | Done
    | InputRequest
    | Answer
    | NodeAnswer
    | Stalled
    | Renumbered
    | NoLifeline
    | Leaving
    | Beat
)


# ---------------------------------------------------------------- controller ──► agent


class Welcome(Message, frozen=True):
    """The agent's place in the world, and the limits it keeps."""

    lifeline: str
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
    keeps_launcher: bool = False
    """The workers get to see the launcher's variables: by them MPI finds the launcher again."""


class NewLifeline(Message, frozen=True):
    """A lifeline broke: dial another of this name (see wire/bulk/server)."""

    name: str


class Turned(Message, frozen=True):
    """The agent is not wanted, and why."""

    reason: str


class StartStore(Message, frozen=True):
    """Host the rendezvous store on this node. ``port`` 0: any."""

    host: str
    port: int


class Cell(Message, frozen=True):
    """Run this on these of your ranks."""

    run: int
    ranks: tuple[int, ...]
    code: str
    allow_stdin: bool
    is_internal: bool
    is_setup: bool = False


class Halt(Message, frozen=True):
    """Free these ranks from this run; ``listeners`` are the world's, ``grace`` seconds until a rank is given up."""

    run: int
    ranks: tuple[int, ...]
    listeners: tuple[tuple[str, int], ...]
    grace: float


class Form(Message, frozen=True):
    """Form a generation of the world."""

    generation: int
    ranks: tuple[int, ...]
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
    cut: tuple[tuple[str, int], ...]
    """Sockets of the dead generation, cut before it is left."""
    node_of: tuple[int, ...] = ()
    """The node that each place is on; empty: each is one (see core/topology)."""


class Replace(Message, frozen=True):
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


class Quit(Message, frozen=True):
    """End the workers and yourself."""


ToNewcomer = Enrolled | Turned
ToAgent = (
    Welcome
    | NewLifeline
    | Turned
    | StartStore
    | Cell
    | Halt
    | Form
    | Replace
    | Renumber
    | Ask
    | AskNodes
    | InputReply
    | Quit
)


# ---------------------------------------------------------------- worker ──► agent ──► worker


class WorkerHello(Message, frozen=True):
    """The worker's jdist thread runs."""

    rank: int
    pid: int


class BeRank(Message, frozen=True):
    """The worker has another rank from its next generation on."""

    rank: int


class Importable(Message, frozen=True):
    """Code that was synced: ``folders`` come first on the path; files at ``changed`` are to be read again."""

    folders: tuple[str, ...]
    changed: tuple[str, ...]


WorkerMessage = WorkerHello | Formed | FormFailed | GroupMade | Answer | Stalled
ToWorker = Cell | Halt | Form | Ask | BeRank | Importable | Quit
