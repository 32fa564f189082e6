"""Runs: one cell from its submission to the outcome of each rank."""

from __future__ import annotations

from jdist.core.messages.base import Message, PayloadWire
from jdist.core.observation import CallDigest
from jdist.core.outcome import ErrorInfo


class RankDone(Message, frozen=True):
    """One rank's part of a run is over.

    ``kind`` is an :data:`~jdist.core.outcome.Kind`. The value is in ``payload``; if it is too large to travel unasked,
    ``held`` is the expression under which it can be pulled.
    """

    run: int
    rank: int
    kind: str
    duration: float = 0.0
    payload: PayloadWire | None = None
    held: str = ""
    error: ErrorInfo | None = None
    digests: tuple[CallDigest, ...] = ()
    """Of the groups in which it called collectives; empty where too many were called to remember them all."""


class InputRequest(Message, frozen=True):
    """A rank reads a line from the user."""

    run: int
    rank: int
    prompt: str
    is_password: bool


class RunCell(Message, frozen=True):
    """Run ``code`` on ``ranks``; ``timeout`` in seconds from its start."""

    request: str
    code: str
    ranks: tuple[int, ...]
    timeout: float | None = None
    allow_stdin: bool = False
    is_setup: bool = False
    is_internal: bool = False
    """jdist's own cell: not counted in ``Out``, not stored in history."""


class Interrupt(Message, frozen=True):
    """Stop what runs on ``ranks`` (empty: everywhere), or one run."""

    request: str = ""
    ranks: tuple[int, ...] = ()
    run: int = 0


class InputReply(Message, frozen=True):
    """What the user typed."""

    run: int
    rank: int
    text: str


class RunAccepted(Message, frozen=True):
    """The run's number; ``behind`` are the runs it waits for."""

    request: str
    run: int
    behind: tuple[int, ...] = ()


class RunStarted(Message, frozen=True):
    """The run has been sent to its ranks."""

    run: int


class RunEnded(Message, frozen=True):
    """Every rank is done. ``reason``: "", "timeout" or "interrupted". ``seconds`` since it was started."""

    run: int
    reason: str
    seconds: float
    first_failure: int = -1


class ExecuteCell(Message, frozen=True):
    """Run this on these of your ranks."""

    run: int
    ranks: tuple[int, ...]
    code: str
    allow_stdin: bool
    is_internal: bool
    is_setup: bool = False


class AbortRun(Message, frozen=True):
    """Free these ranks from this run; ``listeners`` are the world's, ``grace`` seconds until a rank is given up."""

    run: int
    ranks: tuple[int, ...]
    listeners: tuple[tuple[str, int], ...]
    grace: float
