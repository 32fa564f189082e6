"""Nodes: a node's clock, its report, and the network path from one node to another."""

from __future__ import annotations

from jdist.core.messages.base import Message
from jdist.core.node_report import NetworkPath, NodeReport


class ReadClock(Message, frozen=True):
    """What time is it?"""


class ClockReading(Message, frozen=True):
    """The node's wall clock, seconds since the epoch."""

    now: float


class ReportNode(Message, frozen=True):
    """What is on the node? ``is_brief``: only what is known at once."""

    is_brief: bool = False


class NodeReported(Message, frozen=True):
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


class ProbePath(Message, frozen=True):
    """Go the way to another node, which listens: look up its name, connect, measure."""

    hostname: str
    address: str
    port: int
    token: str
    timeout: float
    """Seconds to look up the name, and again to connect."""
    burst: float
    """Seconds for which bandwidth is measured; 0: not at all."""


class PathProbed(Message, frozen=True):
    """How it went."""

    path: NetworkPath
