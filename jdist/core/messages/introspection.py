"""Introspection: completion, documentation, logs and consoles of ranks, and jdist's own log records."""

from msgspec import Struct

from jdist.core.messages.base import Message


class Complete(Message, frozen=True):
    """Complete the name before ``cursor`` in ``code`` with the rank's names."""

    code: str
    cursor: int


class Completed(Message, frozen=True):
    """Completions of the text between ``start`` and ``end``."""

    matches: tuple[str, ...]
    start: int
    end: int
    types: tuple[str, ...] = ()  # The type of each match: "Tensor", "function", "class", "keyword"; "" if unknown.


class Inspect(Message, frozen=True):
    """Describe ``name``, which may have dots; ``detail`` 1: with its source."""

    name: str
    detail: int = 0


class Inspected(Message, frozen=True):
    """Type, signature and documentation; "" if the name does not exist."""

    text: str


class Logs(Message, frozen=True):
    """Ask the agent for the newest ``lines`` lines of a rank's log."""

    lines: int


class LogText(Message, frozen=True):
    """The lines, and the path of the whole log on the node."""

    text: str
    path: str


class Console(Message, frozen=True):
    """Ask the agent how to attach a terminal to a rank."""


class ConsoleAt(Message, frozen=True):
    """The rank's host and kernel connection file."""

    hostname: str
    connection_file: str


class GetDebugLog(Message, frozen=True):
    """The newest ``lines`` log records of a process of jdist: of the controller, an agent or a worker."""

    lines: int


class DebugRecord(Struct, frozen=True, array_like=True):
    """One record, with its traceback if it has one."""

    time: float  # Seconds since the epoch, by the host's own clock.
    level: str  # "DEBUG", "INFO", "WARNING" or "ERROR".
    floor: str  # The logger: "controller", "wire", …
    text: str


class DebugLog(Message, frozen=True):
    """Log records, oldest first."""

    records: tuple[DebugRecord, ...]


RankOp = Complete | Inspect | Logs | Console | GetDebugLog
RankReplyBody = Completed | Inspected | LogText | ConsoleAt | DebugLog
