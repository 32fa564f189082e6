"""Nodes: questions that a node's agent answers for the node, and their answers: AskNodes.op and NodeAnswer.body."""

from __future__ import annotations

from jdist.core.messages.base import Message, ProbeWire
from jdist.core.messages.questions import Fault, Nothing, Progress
from jdist.core.node_report import NodeReport, Path
from jdist.core.source_tree import Piece, Tree


class Clock(Message, frozen=True):
    """What time is it?"""


class ClockAt(Message, frozen=True):
    """The node's wall clock, seconds since the epoch."""

    now: float


class Examine(Message, frozen=True):
    """What is on the node? ``is_brief``: only what is known at once."""

    is_brief: bool = False


class Examined(Message, frozen=True):
    """What was found."""

    report: NodeReport
    now: float
    """The node's wall clock."""


class Listen(Message, frozen=True):
    """Be reachable for other nodes at a port that the system chooses, for ``seconds``; 0: no longer."""

    token: str
    """What a connection must begin with."""
    seconds: float


class Listening(Message, frozen=True):
    """Where; 0: nowhere any more."""

    port: int


class Reach(Message, frozen=True):
    """Go the way to another node, which listens: look up its name, connect, measure."""

    hostname: str
    address: str
    port: int
    token: str
    timeout: float
    """Seconds to look up the name, and again to connect."""
    burst: float
    """Seconds for which bandwidth is measured; 0: not at all."""


class Reached(Message, frozen=True):
    """How it went."""

    path: Path


# ---------------------------------------------------------------- code


class Compare(Message, frozen=True):
    """Which contents of this tree are not on the node?"""

    tree: Tree


class Compared(Message, frozen=True):
    """Digests of what it lacks. ``place`` is the same on nodes that share the folder ``path``."""

    place: str
    path: str
    lacks: tuple[bytes, ...]


class Store(Message, frozen=True):
    """Keep contents until the tree is settled: small ones in ``pieces``, or a part of a large one as a transfer.

    A transfer's bytes are in a segment at ``path`` that this host shares, or at the controller's data port.
    """

    tree: str
    pieces: tuple[Piece, ...] = ()
    digest: bytes = b""
    offset: int = 0
    nbytes: int = 0
    transfer: str = ""
    path: str = ""
    probe: ProbeWire | None = None


class Settle(Message, frozen=True):
    """Make the folder be as the tree, from what was there and what was stored; then the ranks import from it."""

    tree: Tree


class Settled(Message, frozen=True):
    """It is. ``changed`` and ``deleted``: paths in the tree."""

    changed: tuple[str, ...]
    deleted: tuple[str, ...]


class Adopt(Message, frozen=True):
    """The folder was settled by another node that shares it: the ranks import from it."""

    name: str
    is_package: bool
    changed: tuple[str, ...]


NodeOp = Clock | Examine | Listen | Reach | Compare | Store | Settle | Adopt
NodeAnswered = ClockAt | Examined | Listening | Reached | Compared | Settled | Nothing | Progress | Fault


class AskNodes(Message, frozen=True):
    """A question to ``nodes``; each one's agent answers for itself."""

    request: str
    nodes: tuple[int, ...]
    op: NodeOp


class NodeAnswer(Message, frozen=True):
    """One node's answer."""

    request: str
    node: int
    body: NodeAnswered
