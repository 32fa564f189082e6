"""Rules of a batch job: when its run is stopped, and how long it is held for inspection. Pure."""

from typing import Literal

from msgspec import Struct

from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused, RanksResumed
from jdist.core.messages.observation import VerdictChanged
from jdist.core.messages.runs import RankDone, RunEnded
from jdist.core.observation import Verdict

CERTAIN = 10.0  # Seconds for which a verdict must be certain before the run is stopped.
GRACE = 10.0  # Seconds for the other ranks to end on their own after one has failed.
GATHER = 0.5  # Seconds within which pauses of several ranks are reported together.


class Report(Struct, frozen=True):
    """Tell the user where ranks are paused, and how to attach to them."""

    paused: tuple[RankPaused, ...]


class Held(Struct, frozen=True):
    """Tell the user that the run cannot finish and is being held, and how to attach to it."""

    verdict: Verdict


class HoldEnd(Struct, frozen=True):
    """Resume these ranks, which are held after a failure, so that they report it."""

    ranks: tuple[int, ...]


class End(Struct, frozen=True):
    """Interrupt the run."""

    reason: Literal["hang", "failure", "time"]


Action = Report | Held | HoldEnd | End


class Rules:
    """Follows one run. ``feed`` receives its messages, and ``due`` returns what is to be done at a given time."""

    def __init__(self, *, holds: bool, hold_for: float):
        self._holds = holds
        self._hold_for = hold_for
        self.paused: dict[int, RankPaused] = {}
        self.failure: RankPaused | None = None  # The first failure that was held.
        self._news: dict[int, RankPaused] = {}  # Pauses that are to be reported.
        self._is_kept = False  # The run cannot finish and is held.
        self._verdict: Verdict | None = None
        self._report_at: float | None = None
        self._hold_until: float | None = None
        self._end_at: float | None = None
        self._end_reason: Literal["hang", "failure"] = "failure"

    def feed(self, message: Message, now: float) -> None:
        """Process a message about the run."""
        match message:
            case RankPaused():
                self.paused[message.rank] = self._news[message.rank] = message
                self._report_at = now + GATHER if self._report_at is None else self._report_at
                if message.reason == "failure" and self.failure is None:
                    self.failure = message
            case RanksResumed():
                self._forget(message.ranks)
            case RankDone():
                self._forget((message.rank,))
                if message.kind != "value":
                    self._end_within(GRACE, "failure", now)
            case VerdictChanged(_, verdict):
                self._judge(verdict, now)
            case RunEnded():
                self._forget(tuple(self.paused))
                self._end_at = self._verdict = None
        if not self.paused and not self._is_kept:
            self._hold_until = None
        elif self._hold_until is None:
            self._hold_until = now + self._hold_for

    def _judge(self, verdict: Verdict | None, now: float) -> None:
        is_certain = verdict is not None and verdict.is_certain and verdict.kind != "lost"  # a loss ends the run
        is_kept = is_certain and self._holds
        self._verdict = verdict if is_kept and not self._is_kept else None
        self._is_kept = is_kept
        if is_certain and not self._holds:
            self._end_within(CERTAIN, "hang", now)
        elif not is_certain and self._end_reason == "hang":
            self._end_at = None

    def _end_within(self, seconds: float, reason: Literal["hang", "failure"], now: float) -> None:
        if self._end_at is None:
            self._end_at, self._end_reason = now + seconds, reason

    def _forget(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self.paused.pop(rank, None)
            self._news.pop(rank, None)

    def next_deadline(self) -> float | None:
        """When ``due`` is to be called again, if no message arrives before."""
        reports = self._report_at if self._news else None
        return min((t for t in (reports, self._hold_until, self._ends) if t is not None), default=None)

    @property
    def _ends(self) -> float | None:
        return None if self.paused else self._end_at  # not while a user may be inspecting paused ranks

    def due(self, now: float) -> list[Action]:
        """The actions that are due."""
        actions: list[Action] = []
        if self._report_at is not None and now >= self._report_at:
            if self._news:
                actions.append(Report(tuple(self._news[rank] for rank in sorted(self._news))))
            self._news, self._report_at = {}, None
        if self._is_kept and self._verdict is not None:
            actions.append(Held(self._verdict))
            self._verdict = None
        if self._hold_until is not None and now >= self._hold_until:
            self._hold_until, self._is_kept, self._holds = None, False, False
            self._hold_for = 0.0  # Ranks that pause from now on are not held.
            failed = tuple(sorted(r for r, p in self.paused.items() if p.reason == "failure"))
            self._forget(tuple(self.paused))
            self._report_at = None
            self._end_at = now + GRACE if failed else None
            actions.append(HoldEnd(failed) if failed else End("time"))
        if self._ends is not None and now >= self._ends:
            self._end_at = None
            actions.append(End(self._end_reason))
        return actions
