"""Events and instructions: what the state is told, and what it says is to be done. Pure."""

from dataclasses import dataclass

from jdist.core.messages.base import Message


@dataclass(frozen=True)
class FromAgent:
    """An agent's message arrived."""

    agent: str
    message: Message


@dataclass(frozen=True)
class FromClient:
    """A client's message arrived."""

    client: str
    message: Message


@dataclass(frozen=True)
class PeerGone:
    """A liveness connection ended: its process is gone, or, if not ``is_dead``, the connection broke."""

    name: str
    is_dead: bool = True


@dataclass(frozen=True)
class EdgeNotice:
    """The edge has seen something that every client is to be told."""

    text: str


@dataclass(frozen=True)
class EndRequested:
    """The controller's process was asked to end."""

    reason: str


@dataclass(frozen=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True)
class Send:
    """Instruction: send to an agent or a client."""

    peer: str
    message: Message


@dataclass(frozen=True)
class Forget:
    """Instruction: an agent or a client is not known any more; if it speaks again it has to say hello first."""

    peer: str


@dataclass(frozen=True)
class Exit:
    """Instruction: the cluster is over."""

    reason: str


Event = FromAgent | FromClient | PeerGone | EdgeNotice | EndRequested | Tick
Instruction = Send | Forget | Exit
