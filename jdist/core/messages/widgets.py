"""Widgets: what comms of ranks tell the notebook, and how events of its page reach all ranks in step.

The messages of a comm travel among the output of their run, as `CommSent`. An event goes the other way as a query. So
that each rank takes it at the same place of the program, the client first asks every rank with `PrepareEvents` for a
call of ``jdist.process_events`` that it has not made, and then tells all of them with `DeliverEvents` to take the
events at the last of these calls.
"""

from typing import Literal

from msgspec import Struct

from jdist.core.messages.base import Message

TAKEN = "jdist.events"
"""The id of the comm by which a rank says that it has taken events: ``{"batch", "call", "unknown"}``, where
``unknown`` has the ids of comms that it lacks."""


class CommContent(Struct, frozen=True, array_like=True):
    """A message of a comm as the kernel sent it. ``data`` is JSON."""

    kind: Literal["open", "msg", "close"]
    target: str
    data: bytes
    buffers: tuple[bytes, ...] = ()


class CommEvent(Struct, frozen=True):
    """A message to a comm of each of some ranks. ``data`` is JSON."""

    comm_ids: dict[int, str]  # By rank.
    data: bytes
    buffers: tuple[bytes, ...] = ()


class PrepareEvents(Message, frozen=True):
    """Events are about to come: make no more than a few calls of ``process_events`` until they have."""

    hold: float  # Seconds for which a rank waits in such a call at most.


class EventPoint(Message, frozen=True):
    """The run that the rank is in (0: none), and a call in it at which it can take events."""

    run: int
    call: int = 0  # Counted from 1 in the run; 0: its cell has made none.
    awaits: bool = False  # The cell awaits, so that its event loop can take them.


class StoreEvents(Message, frozen=True):
    """The next part of a batch of events that is too large for one message; its DeliverEvents comes later."""

    batch: int
    part: bytes


class DeliverEvents(Message, frozen=True):
    """Take events at a call of ``process_events`` in a run, at once in the event loop of a cell that awaits (-1), or
    when a cell of jdist's own asks for them (0). If the rank has not taken the batch yet, another message with
    the same number moves it to another call.
    """

    batch: int
    events: bytes = b""  # CommEvents as msgpack, or the rest of them; b"" to release a held rank, or to move the batch.
    run: int = 0
    call: int = 0


RankOp = PrepareEvents | StoreEvents | DeliverEvents
RankReplyBody = EventPoint
