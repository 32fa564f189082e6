"""Observation: what each rank is doing, seen from outside its main thread, and the verdict on a run."""

from jdist.core.messages.base import Message, ProbeWire
from jdist.core.messages.nodes import GpuUse
from jdist.core.observation import Activity, Call, Channel, GroupProgress, Verdict


class Observe(Message, frozen=True):
    """Ask what the rank is doing."""

    recent: int = 0  # With so many recent calls of each group.
    with_gpu: bool = False  # Also how it uses its GPU, which its agent finds out.


class Observation(Message, frozen=True):
    """What a rank is doing, and how far it is in each group; its agent says "silent" if it does not answer in time."""

    device: str
    doing: Activity
    rss: int  # Bytes.
    groups: tuple[GroupProgress, ...] = ()
    recent: tuple[Call, ...] = ()  # Oldest first, those in flight included.
    run: int = 0  # The run whose cell is being executed; 0: none.
    gpu: GpuUse | None = None  # None: there is no GPU, it was not asked for, or the driver does not report it.
    channels: tuple[Channel, ...] = ()  # Of its sends and receives, if recent calls were asked for.


class GetStack(Message, frozen=True):
    """Ask for the stack of the rank's main thread."""


class StackText(Message, frozen=True):
    """The stack as Python prints it, innermost frame last; if a cell runs, from the cell on."""

    text: str


class GetTrace(Message, frozen=True):
    """Ask for the calls of torch.distributed that the rank made in ``run`` (0: its last one)."""

    run: int = 0


class RankTrace(Message, frozen=True):
    """The rank's calls, oldest first. Times are the wall clock of the rank's host, seconds since the epoch."""

    run: int
    calls: tuple[Call, ...]
    began: float  # When the cell began.
    ended: float | None
    now: float
    left_out: int = 0  # Number of older calls that are not kept any more.


class ReadProfile(Message, frozen=True):
    """Ask for what was recorded of a profiled run (0: the last one); `Evaluated` answers, as it does for a value."""

    run: int = 0
    probe: ProbeWire | None = None  # As in `Evaluate`.


class VerdictChanged(Message, frozen=True):
    """Why a run makes no progress; None: the last verdict does not hold any more."""

    run: int
    verdict: Verdict | None


class Stalled(Message, frozen=True):
    """A worker's main thread is blocked in one place of torch.distributed for a moment; sent once for each place."""

    worker: int
    run: int


RankOp = Observe | GetStack | GetTrace | ReadProfile
RankReplyBody = Observation | StackText | RankTrace
