"""Runs: a cell from its submission to its output and each rank's outcome, and its record for later clients."""

from typing import Annotated, Any, Literal

from msgspec import Struct, field

from jdist.core.messages.base import Message, PayloadWire
from jdist.core.messages.debug import RankPaused, RanksResumed
from jdist.core.messages.observation import CallDigest, VerdictChanged
from jdist.core.messages.status import Notice
from jdist.core.outcome import ErrorInfo
from jdist.core.profile import ProfileOptions
from jdist.core.settings import Option


class RankDone(Message, frozen=True):
    """One rank's part of a run is over."""

    run: int
    rank: int  # From an agent, the worker's id, which the controller replaces (see membership).
    kind: str  # An :data:`~jdist.core.outcome.OutcomeKind`.
    duration: float = 0.0  # Seconds.
    payload: PayloadWire | None = None  # The value.
    held: str = ""  # The expression that pulls a value that is too large for a message.
    error: ErrorInfo | None = None
    digests: tuple[CallDigest, ...] = ()  # One for each group with collectives; empty if there were too many calls.
    has_broken_group: bool = False  # A collective's connections have ended: the world must be formed again.


class InputRequest(Message, frozen=True):
    """A rank waits for a line of input."""

    run: int
    rank: int
    prompt: str
    is_password: bool


class CellSpec(Struct, frozen=True, omit_defaults=True):
    """A cell and how it is to be run, from the client to the workers; the front end derives its options from it."""

    code: str
    timeout: Annotated[
        float | None, Option("seconds (20s, 5m) until every rank is interrupted", short="-t", metavar="TIMEOUT")
    ] = None
    allow_stdin: bool = False
    is_setup: Annotated[bool, Option("remember the cell and run it again on fresh ranks", word="--setup")] = False
    is_internal: bool = False  # A cell of jdist's own: not counted in `Out`, not stored in history.
    holds: Annotated[bool, Option("pause a rank that fails where it failed; nothing is torn down", word="--hold")] = (
        False
    )
    in_failure: bool = False  # On ranks whose last cell failed, run it in the frame that failed.
    profile: ProfileOptions | None = None  # Run it under torch.profiler.
    first_line: int = 1  # The number that the code's first line has where the user reads it.


class RunCell(Message, frozen=True):
    """Run a cell on ``ranks``."""

    request: str
    spec: CellSpec
    ranks: tuple[int, ...]


class Interrupt(Message, frozen=True):
    """Interrupt the runs on ``ranks`` (empty: all), or one run."""

    request: str = ""
    ranks: tuple[int, ...] = ()
    run: int = 0


class InputReply(Message, frozen=True):
    """The line that the user typed."""

    run: int
    rank: int
    text: str


class RunAccepted(Message, frozen=True):
    """The run's number, and ``behind``, the runs it waits for."""

    request: str
    run: int
    behind: tuple[int, ...] = ()


class RunStarted(Message, frozen=True):
    """The run has been sent to its ranks."""

    run: int


class Text(Message, frozen=True):
    """Text that ``ranks`` wrote alike to a stream."""

    ranks: tuple[int, ...]
    stream: Literal["stdout", "stderr"]
    text: str
    area: str = ""  # The comm of the output widget of a rank that captured it; "": none did.


class Display(Message, frozen=True):
    """A mime bundle shown by ranks: a display() call, a result, or the update of an earlier display."""

    ranks: tuple[int, ...]
    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str = ""
    is_result: bool = False
    is_update: bool = False
    area: str = ""  # As above.


class Clear(Message, frozen=True):
    """A call of clear_output() on ranks."""

    ranks: tuple[int, ...]
    wait: bool = False
    area: str = ""  # Clears only what this output widget has captured; "": everything.


class Tail(Message, frozen=True):
    """The end of a stream above its limit: how much was left out so far, and the newest text. Replaces the last one."""

    rank: int
    stream: Literal["stdout", "stderr"]
    lines: int
    chars: int
    text: str


class CommSent(Message, frozen=True):
    """A message of a comm of ranks, or a part of one: what a widget there tells the notebook (see messages/widgets)."""

    ranks: tuple[int, ...]
    comm_id: str
    content: bytes  # An encoded :class:`~jdist.core.messages.widgets.CommContent`.
    replaces: str = ""  # The message stands for each earlier one with the same text here.
    has_more: bool = False  # Its content goes on in the next message of the comm.


OutputItem = Text | Display | Clear | Tail | CommSent


class OutputNumber(Struct, frozen=True, array_like=True):
    """Where a message stands in the output of one agent, which sends its newest output again to another controller."""

    agent: int  # Stands for the agent's process; random.
    value: int  # Grows with each message.
    previous: int  # The value of the one before it in the same run; 0: there was none, or it is not known any more.


class Output(Message, frozen=True):
    """Output of ranks of a run. A message that has nothing but tails has no number: the next ones replace it."""

    run: int
    items: tuple[OutputItem, ...]
    number: OutputNumber | None = None


class MetricPoints(Message, frozen=True):
    """Numbers that a rank logged under one name since the last message: columns of 64-bit integers and floats.

    Of very many points, only every ``stride``-th is sent; those whose index in the run is divisible by it.
    """

    rank: int  # From an agent, the worker's id.
    name: str
    steps: bytes  # int64.
    values: bytes  # float64.
    times: bytes  # float64: seconds of the rank's wall clock.
    first: int  # The index of the first point in the columns.
    stride: int
    count: int  # Number of points that the rank has logged under the name in the run.
    newest: tuple[int, float, float]  # Step, value and time of the newest point.
    nonfinite: int = 0  # How many of them were NaN or infinite.
    first_nonfinite: int = 0  # The step of the first of these.
    nonfinite_since: int | None = None  # The step from which on all were; None if the newest is finite.


class MetricsLogged(Message, frozen=True):
    """Numbers that ranks logged with ``jdist.log``."""

    run: int
    points: tuple[MetricPoints, ...]


class RunEnded(Message, frozen=True):
    """Every rank's part has ended. ``reason`` is "" or says why the run was ended; ``seconds`` since its start."""

    run: int
    reason: str
    seconds: float
    first_failure: int = -1


class ExecuteCell(Message, frozen=True):
    """Run a cell on these workers."""

    run: int
    workers: tuple[int, ...]
    spec: CellSpec
    in_run: int = 0  # The run that is paused on these workers, in whose chosen frame the cell runs.
    unformed: str = ""  # Why the world could not be formed: the cell runs without one.


class CellEnded(Message, frozen=True):
    """A cell is over on a worker; how it ended travels among its output, as `RankDone`."""

    worker: int
    run: int


class CellRefused(Message, frozen=True):
    """A node has not begun a cell on these workers, because one of them has no process any more."""

    run: int
    workers: tuple[int, ...]


class HandlerRun(Message, frozen=True):
    """A run was interrupted on a worker, and its cell goes on there."""

    worker: int
    run: int
    is_handler: bool  # In an `except` or `finally`; else the interrupt was swallowed.
    line: int | None  # Of the cell.
    source: str
    seconds: float  # How long it may.


class AbortRun(Message, frozen=True):
    """End a run on these workers: close connections to ``listeners``; replace one after ``grace`` seconds."""

    run: int
    workers: tuple[int, ...]
    listeners: tuple[tuple[str, int], ...]
    grace: float
    patience: float = 0.0  # Seconds for which the cell's own handlers may run.
    insists: bool = False  # The user has asked again: end the handlers, too.
    is_inner: bool = False  # It runs in the frame of a paused run: end no connections if a signal is enough.
    at: float = 0.0  # When the agent passed this on, in seconds of its node's monotonic clock.


class InterruptHeard(Message, frozen=True):
    """A worker's control thread has the AbortRun, or the Shutdown, and sees to the main thread from now on."""

    worker: int


_Cell = RunStarted | Output | MetricsLogged | RankDone | RunEnded
Recorded = _Cell | RankPaused | RanksResumed | VerdictChanged | Notice


class Waiter(Struct, frozen=True):
    """What a client that waits for a run knows of it, for a controller that has taken the run over."""

    is_owner: bool  # It has submitted the run: it answers input() and sends modules.
    seconds: float  # Since the run's start.
    timeout: float | None = None  # Seconds that are left until its deadline.


class ReadRun(Message, frozen=True):
    """Ask for the record of a run, over or not."""

    request: str
    run: int  # 0: the newest.
    waiter: Waiter | None = None  # Send what comes later to this client as well.


class RunRecord(Message, frozen=True):
    """What a client of the run has been told so far, in order; values are left out."""

    request: str
    run: int
    ranks: tuple[int, ...]
    messages: tuple[Recorded, ...]
    seconds: float  # Since its start, or in all; negative if it is queued.
    timeout: float | None = None  # Seconds.


WorkerMessage = HandlerRun | InterruptHeard | CellEnded
ClientMessage = RunCell | Interrupt | InputReply | ReadRun
ToClient = RunAccepted | RunStarted | Output | MetricsLogged | RankDone | RunEnded | InputRequest | RunRecord
AgentMessage = Output | MetricsLogged | RankDone | InputRequest | CellRefused | HandlerRun
ToAgent = ExecuteCell | AbortRun | InputReply
