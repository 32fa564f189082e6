"""Groups: forming the world, its rendezvous store, and the named groups and meshes in it."""

from __future__ import annotations

from msgspec import Struct

from jdist.core.messages.base import Message


class GroupSpec(Struct, frozen=True):
    """A process group as somebody asked for it: global ranks, backend (None: the world's), name."""

    ranks: tuple[int, ...]
    backend: str | None = None
    name: str = ""
    splits: tuple[tuple[int, ...], ...] = ()
    """Made by split_group of the world into these; ``ranks`` is empty then."""
    is_gone: bool = False
    """It has lost a member for good and is not made again. Its place is kept, since torch names groups by counting."""


class GroupCreated(Message, frozen=True):
    """A group or mesh has been made."""

    text: str


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


class StoreUp(Message, frozen=True):
    """The rendezvous store listens."""

    host: str
    port: int


class StoreDown(Message, frozen=True):
    """The rendezvous store could not be started, or died."""

    reason: str


class WorldFormed(Message, frozen=True):
    """A rank holds the generation."""

    rank: int
    generation: int
    device: str
    listeners: tuple[tuple[str, int], ...]
    notices: tuple[str, ...] = ()
    wants_reform: bool = False
    """It has functions that are to be called now that the world has been formed again."""


class WorldFailed(Message, frozen=True):
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


class StartStore(Message, frozen=True):
    """Host the rendezvous store on this node. ``port`` 0: any."""

    host: str
    port: int


class FormWorld(Message, frozen=True):
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
