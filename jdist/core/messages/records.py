"""Records: what a run has written and how it ended, for clients that were not there."""

from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused, RanksResumed
from jdist.core.messages.observation import VerdictChanged
from jdist.core.messages.runs import MetricsLogged, Output, RankDone, RunEnded, RunStarted
from jdist.core.messages.status import Notice

_Cell = RunStarted | Output | MetricsLogged | RankDone | RunEnded
Recorded = _Cell | RankPaused | RanksResumed | VerdictChanged | Notice


class ReadRun(Message, frozen=True):
    """Ask for the record of a run, over or not."""

    request: str
    run: int  # 0: the newest.


class RunRecord(Message, frozen=True):
    """What a client of the run has been told so far, in order; values are left out."""

    request: str
    run: int
    ranks: tuple[int, ...]
    messages: tuple[Recorded, ...]
    seconds: float  # Since its start, or in all; negative if it is queued.
    timeout: float | None = None  # Seconds.


ClientMessage = ReadRun
ToClient = RunRecord
