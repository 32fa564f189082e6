"""Observation: what ranks do in torch.distributed, the stacks of those that are paused, and verdicts on runs.

Structures come first, then the messages that carry them. An observation is made without the help of the rank's main
thread. Groups have torch's own names ("0" is the world of the first generation), which are the same on every rank;
``label`` is for people.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal, Self

from msgspec import Struct

from jdist.core.errors import Remedy
from jdist.core.messages.base import Message, ProbeWire
from jdist.core.messages.nodes import GpuUse
from jdist.core.ranks import RankSet

# request: a user requested it. breakpoint: the code reached one. step: a step is complete. next_call: the rank is about
# to begin a collective or transfer. failure: an exception left the code of a cell that is held on failure.
PauseReason = Literal["request", "breakpoint", "step", "next_call", "failure"]

# How a paused rank resumes. continue: until something else pauses it. step: to the next line anywhere; next: to the
# next line of the chosen frame or of one of its callers; return: until the chosen frame is about to return; until: to a
# line of the chosen frame at or after a number. These four also pause where a function in question is about to return.
# next_call: until it is about to begin its next collective or transfer.
StepKind = Literal["continue", "step", "next", "return", "until", "next_call"]


class StackFrame(Struct, frozen=True, omit_defaults=True):
    """One frame of a rank's Python stack."""

    function: str  # Qualified name; "<cell>" for the code of a cell outside of any function.
    file: str  # Path on the rank's node; "" for a cell.
    line: int  # From 1.
    source: str = ""  # Text of that line, without its indentation.
    run: int = 0  # The run whose cell the code is from; 0 if it is not from a cell.
    is_user_code: bool = True  # Of a cell, a script or the user's own modules, rather than of an installed library.

    @property
    def place(self) -> str:
        """Such as "train_step, line 8" or "train_step, model.py line 8"."""
        file = f"{self.file.rpartition('/')[2]} " if self.file else ""
        return f"{self.function}, {file}line {self.line}"


ANY = -1  # The peer of a receive from any rank.


class Call(Struct, frozen=True, omit_defaults=True):
    """One collective, send or recv, as one rank called it."""

    op: str  # As torch.distributed names it: all_reduce, broadcast, send, recv, ...; of DDP's reducer, all_reduce.
    group: str
    number: int = 0  # Sequence number of a collective in its group, from 1, on every rank; 0 for a send or recv.
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()  # "float32", one for each shape.
    detail: str = ""  # Other arguments that ranks must agree on: "src=1", "splits=[1, 3]→[2, 2]"; "" if unknown.
    peer: int | None = None  # Global rank of the send's or recv's peer (:data:`ANY`: any); None for a collective.
    tag: int = 0
    line: int | None = None  # Line in the source of the cell or script, from 1; None if it is not on the stack.
    file: str = ""  # Name of that script; "" for a cell.
    started: float = 0.0  # Wall clock of the rank's host, seconds since the epoch.
    ended: float | None = None  # None while the call is in flight, or if its end was not observed (see `is_done`).
    is_done: bool = False
    has_failed: bool = False  # It raised an exception.
    parts: int = 1  # Collectives of its group that it consists of so far, of which `number` is the last.
    nth: int = 0  # Of a send or recv: its number in its :class:`Channel`, from 1; 0 if unknown.
    is_expected: bool = False  # It waits before it has a number; `number` is the next one of its group.

    @property
    def place(self) -> str:
        """``"cell line 5"``, of a script ``"train.py line 5"``; "" if the line is unknown."""
        return f"{self.file or 'cell'} line {self.line}" if self.line else ""

    @property
    def tensors(self) -> str:
        """``"[16] float32"``; of several tensors the first, and how many more there are."""
        if not self.shapes:
            return ""
        dtype = f" {self.dtypes[0]}" if self.dtypes else ""
        more = f" and {len(self.shapes) - 1} more" if len(self.shapes) > 1 else ""
        return f"{list(self.shapes[0])}{dtype}{more}"

    @property
    def is_send(self) -> bool:
        """Whether a transfer is a send, not a recv."""
        return "send" in self.op

    @property
    def direction(self) -> str:
        """Of a message ``"from rank 2"``, ``"to rank 0"`` or ``"from any rank"``; "" for a collective."""
        if self.peer is None:
            return ""
        peer = "any rank" if self.peer == ANY else f"rank {self.peer}"
        return f"{'to' if self.is_send else 'from'} {peer}"


class GroupProgress(Struct, frozen=True, omit_defaults=True):
    """How far a rank is in a process group: the numbers of the last collectives that it began and ended there."""

    name: str
    members: str  # Global ranks as "0-3,8": every rank of a large world sends those of its groups.
    begun: int
    ended: int
    label: str = ""  # "world", the name it was made under, its description, or "".

    @classmethod
    def of(cls, name: str, ranks: tuple[int, ...], begun: int, ended: int, label: str = "") -> Self:
        """The progress in a group of these ranks."""
        return cls(name, _written(ranks), begun, ended, label)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The group's global ranks in ascending order."""
        return _read(self.members)


@functools.lru_cache(maxsize=256)
def _written(ranks: tuple[int, ...]) -> str:
    return str(RankSet(ranks))


@functools.lru_cache(maxsize=256)
def _read(members: str) -> tuple[int, ...]:
    ends = (part.partition("-") for part in members.split(",") if part)
    return tuple(rank for first, _, last in ends for rank in range(int(first), int(last or first) + 1))


class Channel(Struct, frozen=True, omit_defaults=True):
    """A rank's sends to one rank, or its receives from one, with one tag in one group, since the world was formed.

    The messages of a channel arrive in order, so the n-th send there meets the n-th receive.
    """

    group: str
    is_send: bool
    peer: int  # Global rank; :data:`ANY` for receives from any rank.
    tag: int
    begun: int
    in_flight: int = 0
    taken: tuple[tuple[int, int], ...] = ()  # Of receives from any rank: from whom they got how many, if that is known.


class CallDigest(Struct, frozen=True):
    """A digest of a run's calls in a group; with equal counts, different digests mean different collectives."""

    group: str
    label: str  # "world", the name it was made under, or "".
    size: int  # Ranks in the group.
    count: int
    digest: bytes


# idle: no cell runs. python: runs or sleeps outside torch.distributed. collective, transfer (send, recv), store (a
# wait at the rendezvous store): blocked in that. silent: does not answer; its process is stopped or holds the GIL.
# paused: by the debugger, with no cell in its frame.
ActivityKind = Literal["idle", "python", "collective", "transfer", "store", "silent", "paused"]


class Activity(Struct, frozen=True, omit_defaults=True):
    """What the main thread is doing, and for how long."""

    kind: ActivityKind
    op: str = ""  # The operation that blocks it (recv, new_group, store.wait), or the innermost Python function.
    line: int | None = None  # Line in the cell's source, from 1.
    source: str = ""  # Text of that line, or "file.py:12 in function" where no cell is on the stack.
    seconds: float = 0.0  # Time since it was first seen in this place; for an idle rank, since its last cell ended.
    cpu: float | None = None  # Recent CPU use of the process in cores, 0 to the number of its threads; None if unknown.
    # The calls it is blocked in: one, or several sends and recvs if it is unknown for which of them it waits.
    calls: tuple[Call, ...] = ()
    needs: tuple[int, ...] = ()  # For new_group: the ranks that must all call it; empty if unknown.
    waits_for: str = ""  # For a store wait: what the rank waits for, in words.
    is_limited: bool = False  # For a store wait: it has a timeout so short that it soon ends by itself.
    state: str = ""  # For a silent rank: its process's state, such as "stopped by a signal (SIGSTOP)".


SAME_SIZE = {"all_reduce", "broadcast", "reduce", "all_gather", "gather", "reduce_scatter"}
SAME_SIZE |= {"all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"}
SAME_SIZE |= {"scatter", "all_reduce_coalesced", "all_gather_coalesced", "_all_gather_base", "_reduce_scatter_base"}
SAME_SIZE |= {"allreduce", "allgather"}
"""Collectives in which every rank has a tensor of the same dtype and number of elements."""
SAME_DTYPE = SAME_SIZE | {"all_to_all", "all_to_all_single"}
"""Collectives in which every rank has tensors of the same dtype."""
_MAY_BE_UNEVEN = {"all_gather"}  # NCCL accepts tensors of different sizes there; other backends fail or block.


def call_signature(call: Call) -> str:
    """The arguments that must be equal on all ranks of a call that has returned everywhere, as text."""
    parts = [call.op]
    if call.op in SAME_SIZE and call.shapes:
        parts.append(" ".join(call.dtypes))
        if call.op not in _MAY_BE_UNEVEN:
            parts.append(str(sizes(call)))
    parts.append(call.detail.partition("splits=")[0].strip())
    return " ".join(filter(None, parts))


def sizes(call: Call) -> tuple[int, ...]:
    """The number of elements of each of its tensors."""
    return tuple(math.prod(shape) for shape in call.shapes)


# missing: a rank will not enter a collective in which others wait. mismatch: ranks of a group are in different
# collectives under one sequence number, or in the same one with different shapes, dtypes, roots, reductions or splits.
# transfer: a send without its recv, or a recv without its send. store: a wait at the rendezvous store for a key that no
# rank will set. cycle: ranks wait for each other in a circle. lost: a rank's process is gone. slow: ranks wait for a
# busy rank, and may still continue.
VerdictKind = Literal["missing", "mismatch", "transfer", "store", "cycle", "slow", "lost"]


class Verdict(Struct, frozen=True, omit_defaults=True):
    """Why a run makes no progress. ``str()`` gives it in plain words; front ends word the remedies themselves."""

    run: int
    kind: VerdictKind
    # The ranks that others wait for, a cycle's members, or whose calls differ from those of most ranks of their group;
    # empty where calls differ and neither side is a majority: no rank is accused then.
    responsible: tuple[int, ...]
    waiting: tuple[int, ...]
    reason: str  # One line, without the run's number.
    details: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    op: str = ""
    group: str = ""
    number: int = 0  # Sequence number of the collective in its group; 0 if none is pending.
    has_passed: bool = False  # A mismatch that blocked no rank: the run finished with wrong results.

    @property
    def is_certain(self) -> bool:
        """Whether the run cannot finish unless the user acts."""
        return self.kind != "slow" and not self.has_passed

    def is_same_finding(self, other: "Verdict") -> bool:
        """Whether both say the same, apart from elapsed times and what busy ranks do meanwhile."""
        return all(getattr(self, f) == getattr(other, f) for f in ("kind", "responsible", "waiting", "reason"))

    @property
    def headline(self) -> str:
        """The first line while the run is active."""
        if self.has_passed:
            return f"run {self.run} finished, but {self.reason}"
        return f"run {self.run} {'cannot finish' if self.is_certain else 'waits'}: {self.reason}"

    @property
    def final_headline(self) -> str:
        """The first line once the run is over."""
        return self.headline if self.has_passed else f"run {self.run} did not finish: {self.reason}"

    @property
    def final_text(self) -> str:
        """The text once the run is over, without suggested actions."""
        return "\n  ".join((f"● {self.final_headline}", *self.details))

    def text(self, word: Callable[[Remedy], str] = str) -> str:
        """The text while the run is active; ``word`` gives the front end's words for a suggested action."""
        actions = [(word(remedy), remedy.effect) for remedy in self.remedies]
        width = max((len(action) for action, _ in actions), default=0)
        lines = (f"→ {action:<{width}}  {effect}" for action, effect in actions)
        return "\n  ".join((f"● {self.headline}", *self.details, *lines))

    def __str__(self) -> str:
        return self.text()


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
