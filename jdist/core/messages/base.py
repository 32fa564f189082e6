"""Base of all messages, and the few parts that messages of several kinds hold."""

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


class ValueMissing(Message, frozen=True):
    """Why a name could not be pulled from a rank."""

    reason: str


class QueryFailed(Message, frozen=True):
    """Why a question has no answer."""

    reason: str


class Progress(Message, frozen=True):
    """Not an answer yet: bytes moved so far for this question."""

    done: int
    total: int


class Ack(Message, frozen=True):
    """Done; there is nothing to say."""
