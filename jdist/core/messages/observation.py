"""Observation: what each rank is doing, seen from outside its main thread, and the verdict on a run."""

from __future__ import annotations

from jdist.core.messages.base import Message
from jdist.core.messages.nodes import GpuUse
from jdist.core.observation import Activity, Call, GroupProgress, Verdict


class Observe(Message, frozen=True):
    """What is the rank doing? ``recent``: how many of each group's last calls are wanted as well.

    ``with_gpu``: what it has of its GPU is wanted, too, which its agent finds out.
    """

    recent: int = 0
    with_gpu: bool = False


class Observation(Message, frozen=True):
    """What the rank is doing, seen from outside its main thread, and how far it is in each group.

    An agent answers for a rank that does not answer in time: ``doing.kind`` is "silent" then, and no more is known.
    """

    device: str
    doing: Activity
    rss: int
    """Bytes."""
    groups: tuple[GroupProgress, ...] = ()
    recent: tuple[Call, ...] = ()
    """Oldest first; what is in flight is among them."""
    run: int = 0
    """The run whose cell the rank is in, 0 between cells."""
    gpu: GpuUse | None = None
    """None: there is none, nobody asked, or the driver does not tell."""


class GetStack(Message, frozen=True):
    """Where is the rank's main thread, frame by frame?"""


class StackText(Message, frozen=True):
    """As Python prints a stack, the innermost frame last; from the cell on, where one runs."""

    text: str


class GetTrace(Message, frozen=True):
    """Which calls of torch.distributed did the rank make in ``run`` (0: in its last)?"""

    run: int = 0


class RankTrace(Message, frozen=True):
    """Its calls, oldest first. Times are the wall clock of the rank's host, seconds since the epoch."""

    run: int
    calls: tuple[Call, ...]
    began: float
    """When the cell began."""
    ended: float | None
    now: float
    left_out: int = 0
    """Older calls that are not kept any more."""


class VerdictChanged(Message, frozen=True):
    """Why a run does not move; None: what was said of it before holds no more."""

    run: int
    verdict: Verdict | None


class Stalled(Message, frozen=True):
    """A rank's main thread has been blocked in one place of torch.distributed for a moment.

    Said once for each place; what became of it is found out by looking.
    """

    rank: int
    run: int
