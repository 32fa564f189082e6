"""Requests to the process that serves a tunnel on another host, and their answers."""

from typing import Any

import msgspec
from msgspec import Struct

from jdist.core.errors import ConnectionLost, JdistError, LaunchError, ProtocolError, Remedy, UsageError
from jdist.core.messages.status import Origin
from jdist.core.settings import Settings
from jdist.wire.transport.keys import Connection


class Request(Struct, frozen=True, tag=True):
    """Anything that is asked of the other host."""


class Ping(Request, frozen=True):
    """Ask for any answer."""


class ListClusters(Request, frozen=True):
    """Ask for the user's clusters there, running or restartable, newest first."""


class FindCluster(Request, frozen=True):
    """Ask for one cluster; "": the newest."""

    name: str


class Revive(Request, frozen=True):
    """Have a controller that has died started again; ``is_dead``: it is known to have died."""

    connection: Connection
    is_dead: bool = False


class WaitRemoved(Request, frozen=True):
    """Wait until a controller that ends has removed its files."""

    connection: Connection


class RemoveLeftovers(Request, frozen=True):
    """Remove what a scheduler still holds for a cluster that has stopped."""

    settings: Settings


class BeginCommand(Request, frozen=True):
    """Carry out ``jdist VERB`` there, on the cluster ``name``; for a start, "" is any name that is free."""

    verb: str
    words: tuple[str, ...]
    name: str


class ReadCommand(Request, frozen=True):
    """Ask for what a command has written from ``offset`` on, once there is something or it has ended."""

    command: "CommandBegun"
    offset: int


class EndCommand(Request, frozen=True):
    """Interrupt a command, which ends what it has begun."""

    command: "CommandBegun"


class Known(Struct, frozen=True):
    """A cluster, as the host of its controller knows it."""

    connection: Connection
    is_here: bool  # Its controller is on that host.
    settings: Settings | None = None  # None: it was started on another host.
    origin: Origin | None = None
    seconds_left: float = 0.0  # For how long it can still be started again; 0: its controller is alive.


class Reached(Struct, frozen=True):
    """A cluster's controller is alive; ``is_new``: it was started again for this request."""

    connection: Connection
    is_new: bool


class CommandBegun(Struct, frozen=True):
    """A command under way: the cluster's name, its process, and the file to which it writes."""

    name: str
    pid: int
    started: int
    file: str


class CommandOutput(Struct, frozen=True):
    """What a command has written, and up to which offset; ``is_over``: it has ended."""

    text: str
    offset: int
    is_over: bool


class Refusal(Struct, frozen=True):
    """Why a request failed."""

    kind: str
    text: str
    remedies: tuple[Remedy, ...] = ()

    def error(self) -> JdistError:
        """The error, as it was raised there."""
        return _KINDS.get(self.kind, UsageError)(self.text, remedies=self.remedies)


_KINDS = {kind.__name__: kind for kind in (UsageError, LaunchError, ConnectionLost, ProtocolError)}
_OfClusters = ListClusters | FindCluster | Revive | WaitRemoved | RemoveLeftovers
AnyRequest = Ping | _OfClusters | BeginCommand | ReadCommand | EndCommand


class Answer(Struct, frozen=True):
    """The answer to a request: its value, encoded, or why there is none."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    refused: Refusal | None = None


def refusal(error: JdistError) -> Answer:
    """The answer that has the asker raise this error."""
    return Answer(refused=Refusal(type(error).__name__, error.message, error.remedies))


def encode_answer(value: Any) -> bytes:
    """An answer with a value, or one that was made already, as bytes."""
    answer = value if isinstance(value, Answer) else Answer(msgspec.Raw(msgspec.msgpack.encode(value)))
    return msgspec.msgpack.encode(answer)
