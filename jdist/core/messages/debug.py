"""Debugging: pausing, inspecting and resuming ranks.

A rank pauses because its controller requested it (`PauseRanks`), because its code did, or because a step is complete.
It reports this with a `RankPaused` in its output stream, and from then on runs the cells that are sent to it in the
chosen frame (`ExecuteCell.in_run`), until a `ResumeRanks` or an `AbortRun` arrives. The controller decides whether a
rank is paused: it counts the `ResumeRanks` that it has sent to each rank for a run, and the rank counts those that it
has received, so a `RankPaused` that crossed a `ResumeRanks` on its way is recognised and ignored.
"""

from msgspec import field

from jdist.core.messages.base import Message
from jdist.core.messages.observation import Call, PauseReason, StackFrame, StepKind, Verdict


class RankPaused(Message, frozen=True):
    """A rank's part of a run is paused."""

    run: int
    rank: int  # From an agent, the worker's id, which the controller replaces (see membership).
    reason: PauseReason
    at: StackFrame  # The chosen frame.
    resumes: int  # How many `ResumeRanks` the rank has received for this run.
    about_to: Call | None = None  # After the step "next_call": what it is about to call.
    returns: str = ""  # At the return of a function: the value that it is about to return, in short.
    thread: str = ""  # Name of the thread that is paused; "" for the main thread.
    error: str = ""  # For a failure, such as "ValueError: no such file".


class Pause(Message, frozen=True):
    """Pause the runs on ``ranks`` (empty: all), or one run. Answered as soon as the ranks have been asked."""

    request: str
    ranks: tuple[int, ...] = ()
    run: int = 0


class Resume(Message, frozen=True):
    """Resume paused ranks (empty: all). Requests to pause that are still pending are withdrawn."""

    request: str
    how: StepKind = "continue"
    ranks: tuple[int, ...] = ()
    line: int = 0  # For "until".


class FollowRun(Message, frozen=True):
    """Send messages about a run to this client as well, from now on."""

    request: str
    run: int


class RunFollowed(Message, frozen=True):
    """The run as it is now, to a client that follows it."""

    request: str
    run: int
    code: str
    ranks: tuple[int, ...]
    pending: tuple[int, ...]  # Ranks whose part has not ended.
    seconds: float  # Since its start; negative if it is queued behind other runs.
    paused: tuple[RankPaused, ...] = ()
    verdict: Verdict | None = None
    ended: dict[int, str] = field(
        default_factory=dict
    )  # How each rank's part ended: an `OutcomeKind`, as far as known.


class RanksResumed(Message, frozen=True):
    """Paused ranks of a run have been told to resume, or are being stopped."""

    run: int
    ranks: tuple[int, ...]
    how: StepKind = "continue"


class PauseRanks(Message, frozen=True):
    """Pause these workers at their next line of Python, if they are in this run."""

    run: int
    workers: tuple[int, ...]


class ResumeRanks(Message, frozen=True):
    """Resume these workers if they are paused in this run, and withdraw a pending request to pause."""

    run: int
    workers: tuple[int, ...]
    how: StepKind = "continue"
    line: int = 0


class ReadStack(Message, frozen=True):
    """Ask for the stack of a paused rank, or of one whose failure is being debugged, after choosing another frame."""

    move: int = 0  # Number of frames of user code: towards the callers if positive, towards the callees if negative.
    index: int = -1  # The frame to choose, from 0 for the outermost; -1: the current one.


class ReadSource(Message, frozen=True):
    """Ask for the text of a file that is on the stack of a paused rank."""

    file: str  # As `StackFrame` names it.


class SourceText(Message, frozen=True):
    """The text of a file."""

    text: str


class DebugFailure(Message, frozen=True):
    """Run cells with ``in_failure`` in the frame in which the rank's last cell failed; answered with its stack."""

    run: int = 0  # 0: its last one.
    ends: bool = False  # No longer debug it, and free its frames.


class Stack(Message, frozen=True):
    """A stack, outermost frame first, from the cell on."""

    frames: tuple[StackFrame, ...]
    chosen: int  # Index of the frame in which cells run.
    run: int
    reason: PauseReason
    error: str = ""
    thread: str = ""


class RankFailure(Message, frozen=True):
    """Instead of its stack: the rank is not paused, and its last cell failed in frames that can be debugged."""

    run: int


ClientMessage = Pause | Resume | FollowRun
ToClient = RunFollowed | RankPaused | RanksResumed
AgentMessage = RankPaused
ToAgent = PauseRanks | ResumeRanks
RankOp = ReadStack | ReadSource | DebugFailure
RankReplyBody = Stack | SourceText | RankFailure
