"""Groups: forming the world, its rendezvous store, and the named groups and meshes in it."""

from msgspec import Struct

from jdist.core.messages.base import Message


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


ClientMessage = MakeGroup | MakeMesh
AgentMessage = StoreUp | StoreDown | WorldFormed | WorldFailed | GroupMade
ToAgent = StartStore | FormWorld
WorkerMessage = WorldFormed | WorldFailed
