"""Reports: what one rank is doing in torch.distributed, as it is seen without its main thread's help. Pure words.

Groups go by torch's own name for them ("0" is the world of the first generation), which is the same on every rank;
``label`` is what a person calls them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ANY = -1
"""The peer of a receive that takes a message from any rank."""


class Call(Struct, frozen=True, omit_defaults=True):
    """One collective, send or recv, as one rank called it."""

    op: str
    """As torch.distributed names it: all_reduce, broadcast, send, recv, ...; "ddp backward" calls what DDP's reducer
    calls, all_reduce."""
    group: str
    number: int = 0
    """Of this collective in its group, from 1, the same on every rank; 0 for a send or recv, which has none."""
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    """"float32", one for each shape."""
    detail: str = ""
    """What else the ranks must agree on: "src=1", "op=MAX", "splits=[1, 3]→[2, 2]"; "" where nothing is known."""
    peer: int | None = None
    """Global rank of a send's receiver or a recv's sender (:data:`ANY`: any); None for a collective."""
    tag: int = 0
    line: int | None = None
    """Of the cell."""
    started: float = 0.0
    """Wall clock of the rank's host, seconds since the epoch."""
    ended: float | None = None
    """The same; None while it is in flight, or where its end was not seen (``is_done`` tells which)."""
    is_done: bool = False
    has_failed: bool = False
    """It raised."""


class GroupProgress(Struct, frozen=True, omit_defaults=True):
    """How far a rank is in a process group: the number of its last collective there, begun and ended."""

    name: str
    ranks: tuple[int, ...]
    """Global ranks."""
    begun: int
    ended: int
    label: str = ""
    """"world", the name it was made under, its description, or ""."""


class CallDigest(Struct, frozen=True):
    """The collectives that a rank called in a group during a run.

    Two ranks of the group whose counts are equal and whose digests differ did not call the same.
    """

    group: str
    label: str
    """"world", the name it was made under, or ""."""
    size: int
    """Ranks in the group."""
    count: int
    digest: bytes


ActivityKind = Literal["idle", "python", "collective", "transfer", "store", "silent"]
"""idle: no cell runs. python: runs or sleeps, in nothing of torch.distributed. collective, transfer (send, recv), store
(waits at the rendezvous store): blocked in it. silent: does not answer, so its process is stopped or holds the GIL."""


class Activity(Struct, frozen=True, omit_defaults=True):
    """What the main thread does now, and for how long."""

    kind: ActivityKind
    op: str = ""
    """The operation it is blocked in (all_reduce, recv, new_group, store.wait), or the innermost Python function."""
    line: int | None = None
    """Of the cell."""
    source: str = ""
    """Text of that line, or "file.py:12 in function" where no cell is on the stack."""
    seconds: float = 0.0
    """Since it was first seen in this very place; of an idle rank, since its last cell ended."""
    cpu: float | None = None
    """Share of a core that the process used lately, 0 to the number of its threads; None where it is not known."""
    calls: tuple[Call, ...] = ()
    """What it is blocked in: one collective, send or recv; several sends and recvs where it is not known for which of
    them it waits."""
    needs: tuple[int, ...] = ()
    """Of new_group: the ranks that must all call it; empty where it is not known."""
    waits_for: str = ""
    """Of a store wait: what the rank waits to be written there, in words."""
    state: str = ""
    """Of a silent rank: its process's state, as "stopped by a signal (SIGSTOP)"."""
