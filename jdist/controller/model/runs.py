"""Runs: which cell runs on which ranks, which waits for which, and what became of each rank's part. Pure.

A rank has at most one run, so two cells never interleave on it, unless its part of a run is paused: then *inner* runs,
one after another, run in the frame in which it is paused. A run's phases are in docs/design/states.md; once it is
aborted, a rank that fails is counted under the abort's reason, not as an error of its own.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from jdist.controller.model.phases import RUN, HasPhase, Lifecycle, RunPhase, transition
from jdist.controller.verdict.wait_graph import Ranks, RankSnapshot
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.nodes import RunInterval
from jdist.core.messages.observation import CallDigest, Verdict
from jdist.core.messages.runs import CellSpec, RankDone, Waiter

_FINAL_POLL = 0.8  # Seconds before a run's deadline at which its ranks are asked what they do.
_MOST_ENDED = 1000  # Runs that have ended, of which it is remembered when that was.
_FAILURE = 200  # Characters of an error that are remembered.

SETUP = "the setup cell"
ON_REFORM = "a function of jdist.on_reform"
SAVE = "an automatic save"

AbortReason = Literal["", "timeout", "interrupted", "lost", "failed"]


NOBODY = "-"  # The client of a run that was begun under an earlier controller, until that client has come.


@dataclass(frozen=True)
class RankEnd:
    """How one rank's part of a run ended."""

    kind: str
    at: float = 0.0
    failure: str = ""  # Such as "ValueError: no such file".
    is_echo: bool = False  # It failed because the connection to another rank ended.
    digests: tuple[CallDigest, ...] = ()  # Of the collectives that it called.


@dataclass
class Run(HasPhase[RunPhase]):
    """One cell on some ranks."""

    number: int
    client: str
    spec: CellSpec
    ranks: tuple[int, ...]
    purpose: str = ""  # What the controller itself runs this for; "" for a client's cell.
    started_at: float | None = None
    pending: set[int] = field(default_factory=set)  # Ranks whose part has not ended.
    not_begun: set[int] = field(default_factory=set)  # Ranks whose node has not begun it, since one had died before.
    ends: dict[int, RankEnd] = field(default_factory=dict)
    first_failure: int = -1
    abort_reason: AbortReason = ""  # Why it was aborted; kept when it has ended.

    asking: set[int] = field(default_factory=set)  # Ranks that wait for a line of input.
    paused: dict[int, RankPaused] = field(default_factory=dict)  # By rank whose part is paused: where.
    pausing: set[int] = field(default_factory=set)  # Ranks that were asked to pause, or do a step, and will report it.
    resumes: dict[int, int] = field(default_factory=dict)  # By rank: how many `ResumeRanks` it was sent.
    within: frozenset[int] = frozenset()  # Runs in whose frames it may run: a rank of it was paused in them.
    inside: dict[int, int] = field(default_factory=dict)  # By rank on which it is an inner run: the run around it.
    followers: list[str] = field(default_factory=list)  # Further clients that get its messages.

    deadline: float | None = None
    time_left: float | None = None  # Until the deadline, which stands still while a rank is paused.
    has_told_time: bool = False  # The clients were told that it does.
    has_told_launch: bool = False  # The clients were told that its ranks need no launcher.
    diagnose_until: float | None = None  # While *diagnosing*: polls until then may explain the loss of a rank.
    give_up_at: float | None = None  # While *aborting*: ranks that are not free by then are replaced.
    handlers: dict[int, float] = field(default_factory=dict)  # By rank whose cell goes on: when it is given up.
    untold: dict[int, str] = field(default_factory=dict)  # By rank: what its cell does, still to be told.
    tell_at: float | None = None  # When it is told, of all ranks at once.
    is_insistent: bool = False  # The user has interrupted again: the cell's own handlers are interrupted, too.
    compare_until: float | None = None  # While *comparing*: the run ends then at the latest.

    is_stalled: bool = False  # A rank of it is blocked, or was at the last poll.
    poll_at: float | None = None  # When the ranks are to be polled.
    final_poll_at: float | None = None  # The last poll before the deadline: its answers explain the timeout.
    unconfirmed: object = None  # What the last poll found and the next has to confirm.
    verdict: Verdict | None = None
    losses: dict[int, RankSnapshot] = field(default_factory=dict)  # Ranks that died in it, in that order.
    seen: Ranks = field(default_factory=dict)  # How a poll found the others after such a loss.

    def __post_init__(self) -> None:
        self.lifecycle = Lifecycle(f"run {self.number}", "queued", RUN)

    @property
    def is_own(self) -> bool:
        """The controller itself runs it: a setup cell again on fresh ranks, or what follows a re-forming."""
        return bool(self.purpose)

    @property
    def is_replay(self) -> bool:
        """A setup cell that the controller itself runs again on fresh ranks."""
        return self.purpose == SETUP

    @property
    def audience(self) -> tuple[str, ...]:
        """The clients that get its messages; "" stands for the controller."""
        return tuple(dict.fromkeys((self.client, *self.followers)))

    @property
    def taken(self) -> set[int]:
        """Ranks on which no other run can begin: those that it is on, unless they are paused."""
        return set(self.ranks) if self.phase == "queued" else self.pending - self.paused.keys()

    @property
    def reason(self) -> str:
        """Why it was ended early, for RunEnded; "" for a run whose ranks all came to an end of their own."""
        if not any(end.kind in ("timeout", "interrupted", "lost") for end in self.ends.values()):
            return ""
        return self.abort_reason or "lost"

    @property
    def is_over(self) -> bool:
        """Whether every rank's part has ended."""
        return self.phase != "queued" and not self.pending

    @property
    def first_to_blame(self) -> int:
        """The rank whose failure is shown first: in a mismatch, the one that the verdict accuses; -1 for none."""
        if self.verdict is None or self.verdict.kind != "mismatch":
            return self.first_failure
        failed = (r for r in self.verdict.responsible if r in self.ends and self.ends[r].kind != "value")
        return next(failed, -1)

    @property
    def next_deadline(self) -> float | None:
        """When its phase changes by itself."""
        if self.phase == "comparing":
            return self.compare_until
        times = (self.give_up_at, self.tell_at) if self.phase == "aborting" else (self.deadline,)
        return min((t for t in times if t is not None), default=None)

    def poll_no_later_than(self, when: float) -> None:
        """Schedule the next poll of the ranks at or before ``when``."""
        self.poll_at = when if self.poll_at is None else min(when, self.poll_at)

    def record_pause(self, message: RankPaused, now: float) -> None:
        """A rank of it is paused: the deadline stands still."""
        self.pausing.discard(message.rank)
        self.paused[message.rank] = message
        if self.deadline is not None:
            self.time_left, self.deadline, self.final_poll_at = self.deadline - now, None, None

    def end_pauses(self, ranks: Iterable[int], now: float) -> None:
        """These ranks are not paused any more, nor asked to; without paused ranks, the deadline moves again."""
        for rank in tuple(ranks):
            self.paused.pop(rank, None)
            self.pausing.discard(rank)
        if self.time_left is not None and not self.paused and not self.abort_reason:
            self._set_deadline(self.time_left, now)
            self.time_left = None

    def _set_deadline(self, seconds: float, now: float) -> None:
        self.deadline = now + seconds
        self.final_poll_at = now + max(seconds / 2, seconds - _FINAL_POLL)

    def begin(self, now: float) -> None:
        """It has been sent to its ranks."""
        transition(self, "running", "its ranks are free")
        self.started_at, self.pending = now, set(self.ranks)
        if self.spec.timeout is not None:
            self._set_deadline(self.spec.timeout, now)

    def add_waiter(self, client: str, waiter: Waiter, now: float) -> None:
        """Let a client follow the run.

        If it was begun under an earlier controller, its owner restores what is unknown here: client, start, deadline.
        """
        if self.client == NOBODY and waiter.is_owner:
            self.client, self.started_at = client, now - waiter.seconds
            if waiter.timeout is not None and not self.abort_reason:
                self._set_deadline(waiter.timeout, now)
                for paused in tuple(self.paused.values())[:1]:
                    self.record_pause(paused, now)
        elif client not in self.audience:
            self.followers.append(client)

    def record(self, done: RankDone, now: float) -> RankDone | None:
        """Record a rank's end; returns the RankDone to pass on, or None if this rank had ended already."""
        if done.rank not in self.pending:
            return None
        self.pending.discard(done.rank)
        self.end_pauses((done.rank,), now)
        kind = done.kind
        if self.abort_reason and kind == "error":
            kind = "timeout" if self.abort_reason == "timeout" else "interrupted"
        failure = "" if done.error is None else f"{done.error.ename}: {done.error.evalue}".partition("\n")[0][:_FAILURE]
        is_echo = done.error is not None and done.error.is_echo
        self.ends[done.rank] = RankEnd(kind, now, failure, is_echo, done.digests)
        is_cause = kind in ("error", "lost") and not is_echo
        died_by_itself = kind == "lost" and not self.abort_reason
        if is_cause and (self.first_failure < 0 or died_by_itself):
            self.first_failure = done.rank
        return msgspec.structs.replace(done, kind=kind, digests=())


class RunBook:
    """All unfinished runs of a cluster, and when the newest of the others were active."""

    def __init__(self) -> None:
        self.last_number = 0
        self.queued: list[Run] = []
        self.running: dict[int, Run] = {}
        self._ended: deque[tuple[int, tuple[int, ...], float, float]] = deque(maxlen=_MOST_ENDED)

    def new_number(self) -> int:
        self.last_number += 1
        return self.last_number

    def why_unknown(self, number: int) -> str:
        """Why there has been no run of this number (0: none is known); "" if there has been one."""
        if not number or not self.last_number:
            return "no cell has been run yet"
        newest = f"the newest is run {self.last_number}"
        return "" if number <= self.last_number else f"there is no run {number}; {newest}"

    def add(self, run: Run) -> tuple[int, ...]:
        """Queue a client's run; the numbers of the runs that it waits for.

        Where a rank of it is paused now, it is meant for the frame in which it is; of other runs it waits for the end.
        """
        wanted = set(run.ranks)
        run.within = frozenset(r.number for r in self.running.values() if wanted & r.paused.keys())
        ahead = [r for r in self.running.values() if wanted & (r.taken if r.number in run.within else r.pending)]
        ahead += [r for r in self.queued if self._places(r) & self._places(run)]
        self.queued.append(run)
        return tuple(r.number for r in ahead)

    def startable(self, *, is_ready: bool = True, is_unformed: bool = False) -> list[Run]:
        """Queued runs that may start now, oldest first; they are taken from the queue.

        Those that run in paused frames alone need no world that ``is_ready``. Where it ``is_unformed``, no user's does.
        """
        if not self.queued:
            return []
        taken = {rank for run in self.running.values() for rank in run.pending}
        entered = {rank for run in self.running.values() for rank in run.pending & run.inside.keys()}
        claimed: set[tuple[int, int]] = set()
        ready: list[Run] = []
        waiting: list[Run] = []
        for run in self.queued:
            places = self._places(run)
            outer = {rank: self.running[number] for rank, number in places if number}
            is_free = all(rank not in (outer[rank].taken | entered if rank in outer else taken) for rank in run.ranks)
            needs_no_world = outer.keys() == set(run.ranks) or (is_unformed and not run.is_own)
            may_start = is_free and not claimed & places and (is_ready or needs_no_world)
            run.inside = {rank: around.number for rank, around in outer.items()}
            (ready if may_start else waiting).append(run)
            claimed |= places
        self.queued = waiting
        return ready

    def _places(self, run: Run) -> set[tuple[int, int]]:
        """Each rank of a queued run, with the run in whose frame it is wanted there; 0: in none."""
        within = [self.running[number] for number in run.within if number in self.running]
        return {(rank, next((r.number for r in within if rank in r.pending), 0)) for rank in run.ranks}

    def inner(self, run: Run) -> list[Run]:
        """The runs in frames of ``run`` that have not ended."""
        return [r for r in self.running.values() if any(r.inside.get(rank) == run.number for rank in r.pending)]

    def start(self, run: Run, now: float) -> None:
        """Record that the run has been sent to its ranks."""
        run.begin(now)
        self.running[run.number] = run

    def end(self, run: Run, now: float) -> None:
        """Record that the run has ended."""
        del self.running[run.number]
        if not run.spec.is_internal and run.started_at is not None:
            self._ended.append((run.number, run.ranks, run.started_at, now))

    def spans(self, now: float, seconds: float) -> tuple[RunInterval, ...]:
        """The runs that users know and that were active in the last ``seconds``, oldest first."""
        spans = [RunInterval(n, ranks, now - b, now - e) for n, ranks, b, e in self._ended if now - e <= seconds]
        active = (run for run in self.running.values() if not run.spec.is_internal and run.started_at is not None)
        spans += [RunInterval(run.number, run.ranks, now - (run.started_at or now), None) for run in active]
        return tuple(sorted(spans, key=lambda span: span.run))

    def put_back(self, run: Run, why: str) -> None:
        """Put a run that no rank has begun back at the head of the queue."""
        transition(run, "queued", why)
        del self.running[run.number]
        run.started_at = run.deadline = run.poll_at = run.final_poll_at = None
        run.pending, run.not_begun, run.is_stalled = set(), set(), False
        run.pausing, run.resumes = set(), {}
        self.queued.insert(0, run)

    def runs_on(self, rank: int) -> list[Run]:
        """The runs that the rank is in, an inner one before that around it, which is always older."""
        return sorted((r for r in self.running.values() if rank in r.pending), key=lambda r: -r.number)

    def run_on(self, rank: int) -> Run | None:
        """The run that the rank is in; of an inner one and the one around it, the inner one."""
        return max((r for r in self.running.values() if rank in r.pending), key=lambda r: r.number, default=None)

    def paused(self) -> dict[int, RankPaused]:
        """Every rank that is paused, and where."""
        return {rank: at for run in self.running.values() for rank, at in run.paused.items()}

    @property
    def is_active(self) -> bool:
        """Whether a run goes on: it is not paused, does not wait for input, and can finish by itself."""
        return any(
            not (run.paused or run.asking & run.pending or (run.verdict is not None and run.verdict.is_certain))
            for run in self.running.values()
        )

    def next_deadline(self) -> float | None:
        """The next moment at which a run's phase changes by itself."""
        return min((t for r in self.running.values() if (t := r.next_deadline) is not None), default=None)
