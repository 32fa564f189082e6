"""Rules of a batch job: when its run is stopped, how long it is held for inspection, and its exit code. Pure.

The exit code is what the command returns to the shell, as the script itself would.
"""

import re
from typing import Literal

from msgspec import Struct

from jdist.client.run import CellRun
from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused, RanksResumed
from jdist.core.messages.observation import Verdict, VerdictChanged
from jdist.core.messages.runs import RankDone, RunEnded
from jdist.core.outcome import Outcome

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


# ---------------------------------------------------------------- exit code

FAILED = 1
SIGNALLED = 128  # Shells add the number of the signal to this.

# The wording of agent/processes/exits for the end of a process, and of worker/process for sys.exit.
_EXITED = re.compile(r"exited with (?:code )?(\d+)")
_KILLED = re.compile(r"killed by signal (\d+)")


def held_failure(run: CellRun, failure: RankPaused | None) -> RankPaused | None:
    """The failure that was held, if it decides how the run has ended.

    The loss of a rank ends the run whatever is held; the failure of another rank may be its consequence, such as a
    connection that was closed. Ranks that were lost with their cluster, which a user has stopped, have no error.
    """
    is_lost = any(outcome.kind == "lost" and outcome.error is not None for outcome in run.outcomes.values())
    return None if is_lost else failure


def exit_code(run: CellRun, held: RankPaused | None = None) -> int:
    """0 if every rank has finished; else the code of the rank that failed first.

    ``held`` is a failure that was held: if the run was interrupted later, the outcome no longer shows it.
    """
    if held is not None:
        return (_read(held.error) if held.error.startswith("ScriptExit") else 0) or FAILED
    failed = {rank: outcome for rank, outcome in sorted(run.outcomes.items()) if not outcome.ok}
    if not failed:
        return 0 if len(run.outcomes) == len(run.ranks) else FAILED
    causes = [r for r, o in failed.items() if o.kind in ("error", "lost") and not (o.error and o.error.is_echo)]
    first = run.first_failure if run.first_failure in failed else next(iter(causes or failed))
    return _code_of(failed[first]) or FAILED


def _code_of(outcome: Outcome) -> int:
    error = outcome.error
    if error is None:
        return FAILED
    if error.exit_code is not None:
        return error.exit_code
    return _read(error.evalue) if outcome.kind == "lost" else FAILED


def _read(text: str) -> int:
    if m := _KILLED.search(text):
        return SIGNALLED + int(m[1])
    return int(m[1]) & 0xFF if (m := _EXITED.search(text)) else 0
