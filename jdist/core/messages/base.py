"""Base: what every message is made of, and the few pieces that several of them hold."""

from __future__ import annotations

from msgspec import Struct

PROTOCOL = 2
"""Checked at every hello; peers with another number are refused with both numbers named."""


MESSAGE_ID = "jdist-"
"""With a run's number behind it, the id of the Jupyter request as whose children the run's output travels."""

AGENT_IDENTITY = "jdist-agent"
"""The agent's at each worker's stdin socket: what a cell asks for goes there."""


class Message(Struct, frozen=True, tag=True, omit_defaults=True):
    """Anything that crosses a socket."""


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
    called: str = ""
    """What its launcher calls it; "" if that says nothing."""
    torch_build: str | None = None
    """What its torch was built for: "CUDA 12.8", "ROCm 6.4", "CPU"; None where that is not known."""


class GroupSpec(Struct, frozen=True):
    """A process group as somebody asked for it: global ranks, backend (None: the world's), name."""

    ranks: tuple[int, ...]
    backend: str | None = None
    name: str = ""
    splits: tuple[tuple[int, ...], ...] = ()
    """Made by split_group of the world into these; ``ranks`` is empty then."""
    is_gone: bool = False
    """It has lost a member for good and is not made again. Its place is kept, since torch names groups by counting."""


class PayloadWire(Message, frozen=True):
    """An encoded value (see wire/values/objects): description, and its raw buffers if they are small enough."""

    head: bytes
    sizes: tuple[int, ...]
    nbytes: int
    summary: str
    buffers: tuple[bytes, ...] | None = None


class ProbeWire(Struct, frozen=True):
    """Proof that two processes share a host's memory: a file with a nonce in it."""

    path: str
    nonce: str


class Missing(Message, frozen=True):
    """Why a name could not be pulled from a rank."""

    reason: str
