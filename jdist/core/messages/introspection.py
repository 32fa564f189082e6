"""Introspection: completion, documentation, logs and consoles of ranks, and jdist's own log records."""

from __future__ import annotations

from msgspec import Struct

from jdist.core.messages.base import Message


class Complete(Message, frozen=True):
    """Which names of the rank's go on with what stands in ``code`` before ``cursor``?"""

    code: str
    cursor: int


class Completed(Message, frozen=True):
    """What may stand between ``start`` and ``end``."""

    matches: tuple[str, ...]
    start: int
    end: int
    types: tuple[str, ...] = ()
    """One for each match: "Tensor", "function", "class", "keyword"; "" where it is not known."""


class Inspect(Message, frozen=True):
    """What is ``name``, which may have dots? ``detail`` 1: with its source."""

    name: str
    detail: int = 0


class Inspected(Message, frozen=True):
    """Type, signature, documentation; "" if there is none of that name."""

    text: str


class Logs(Message, frozen=True):
    """The newest ``lines`` lines of the rank's log (answered by its agent)."""

    lines: int


class LogText(Message, frozen=True):
    """The text, and where the whole log lies on the node."""

    text: str
    path: str


class Console(Message, frozen=True):
    """How does one attach a terminal to this rank (answered by its agent)?"""


class ConsoleAt(Message, frozen=True):
    """Host and kernel connection file."""

    hostname: str
    connection_file: str


class GetDebugLog(Message, frozen=True):
    """The newest ``lines`` log records of a process of jdist: of the controller, an agent or a worker."""

    lines: int


class DebugRecord(Struct, frozen=True, array_like=True):
    """One record, with its traceback if it has one."""

    time: float
    """Seconds since the epoch, by the host's own clock."""
    level: str
    """"DEBUG", "INFO", "WARNING" or "ERROR"."""
    floor: str
    """The logger: "controller", "wire", …"""
    text: str


class DebugLog(Message, frozen=True):
    """Log records, oldest first."""

    records: tuple[DebugRecord, ...]
