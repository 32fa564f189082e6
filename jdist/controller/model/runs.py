"""Runs: which cell runs on which ranks, which waits for which, and what became of each rank's part. Pure.

A run is *queued* until every one of its ranks is free and no earlier queued run wants one of them; then *running*; then
*ended* when each rank has an outcome. A rank has at most one run, so two cells never interleave on it. A running run
may be *halted* once, for a reason: from then on a rank that fails is counted under that reason, not as an error of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from jdist.core.messages.runs import RankDone
from jdist.core.observation import CallDigest
from jdist.core.verdict import Verdict

_LAST_LOOK = 0.8
"""Seconds before a run's deadline at which its ranks are asked what they do."""
_FAILURE = 200
"""Characters of an error that are remembered."""

SETUP = "the setup cell"
ON_REFORM = "a function of jdist.on_reform"

HaltReason = Literal["", "timeout", "interrupted", "lost", "failed"]


@dataclass
class Run:
    """One cell on some ranks."""

    number: int
    client: str
    code: str
    ranks: tuple[int, ...]
    timeout: float | None = None
    allow_stdin: bool = False
    is_setup: bool = False
    is_internal: bool = False
    purpose: str = ""
    """What the controller itself runs this for; "" for a client's cell."""
    started_at: float | None = None
    deadline: float | None = None
    halted: HaltReason = ""
    give_up_at: float | None = None
    pending: set[int] = field(default_factory=set)
    kinds: dict[int, str] = field(default_factory=dict)
    first_failure: int = -1
    ended_at: dict[int, float] = field(default_factory=dict)
    """When each rank's part was over."""
    failures: dict[int, str] = field(default_factory=dict)
    """"ValueError: no such file", by rank."""
    diagnose_until: float | None = None
    """A rank of it is lost, and the others are freed once they have been looked at, by then at the latest."""
    is_stalled: bool = False
    """A rank of it is blocked, or was at the last look."""
    poll_at: float | None = None
    """When the ranks are to be asked what they do."""
    final_poll_at: float | None = None
    """The same, so that the end at its deadline can be explained."""
    unconfirmed: object = None
    """What the last look found and the next has to confirm."""
    verdict: Verdict | None = None
    digests: dict[int, tuple[CallDigest, ...]] = field(default_factory=dict)
    """What each rank called."""
    held_until: float | None = None
    """All its ranks have ended, and it is being found out what they called; it ends then at the latest."""

    @property
    def is_own(self) -> bool:
        """The controller itself runs it: a setup cell again on fresh ranks, or what follows a re-forming."""
        return bool(self.purpose)

    @property
    def is_replay(self) -> bool:
        """A setup cell that the controller itself runs again on fresh ranks."""
        return self.purpose == SETUP

    @property
    def reason(self) -> str:
        """Why it was ended early, for RunEnded; "" for a run whose ranks all came to an end of their own."""
        if not any(kind in ("timeout", "interrupted", "lost") for kind in self.kinds.values()):
            return ""
        return self.halted or "lost"

    @property
    def is_over(self) -> bool:
        return self.started_at is not None and not self.pending

    def wakeups(self) -> tuple[float | None, ...]:
        """The moments at which something is due."""
        if self.held_until is not None:
            return (self.held_until,)
        return (self.give_up_at,) if self.halted else (self.deadline,)

    def poll_no_later_than(self, when: float) -> None:
        """Have the ranks asked at this time at the latest."""
        self.poll_at = when if self.poll_at is None else min(when, self.poll_at)

    def settle(self, done: RankDone, now: float) -> RankDone | None:
        """Note a rank's end; the Done to pass on, or None if this rank had ended already."""
        if done.rank not in self.pending:
            return None
        self.pending.discard(done.rank)
        kind = done.kind
        if self.halted and kind == "error":
            kind = "timeout" if self.halted == "timeout" else "interrupted"
        self.kinds[done.rank] = kind
        self.ended_at[done.rank] = now
        self.digests[done.rank] = done.digests
        if done.error is not None:
            self.failures[done.rank] = f"{done.error.ename}: {done.error.evalue}".partition("\n")[0][:_FAILURE]
        is_cause = kind in ("error", "lost") and not (done.error is not None and done.error.is_echo)
        died_by_itself = kind == "lost" and not self.halted
        if is_cause and (self.first_failure < 0 or died_by_itself):
            self.first_failure = done.rank
        return msgspec.structs.replace(done, kind=kind, digests=())


class RunBook:
    """All unfinished runs of a cluster."""

    def __init__(self) -> None:
        self._last_number = 0
        self.queued: list[Run] = []
        self.running: dict[int, Run] = {}
        self.last_on: dict[int, int] = {}
        """The number of the run that each rank began last."""

    def new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def skip_to(self, number: int) -> None:
        """No new run has this number or a lower one."""
        self._last_number = max(self._last_number, number)

    def add(self, run: Run, first: bool = False) -> None:
        """Queue a run; ``first`` before all others."""
        self.queued.insert(0 if first else len(self.queued), run)

    def blockers(self, run: Run) -> tuple[int, ...]:
        """Numbers of the runs that ``run`` waits for."""
        wanted = set(run.ranks)
        ahead = self.queued[: self.queued.index(run)] if run in self.queued else self.queued
        others = [*self.running.values(), *ahead]
        return tuple(r.number for r in others if wanted & (r.pending or set(r.ranks)))

    def startable(self) -> list[Run]:
        """Queued runs that may start now, oldest first; they are taken from the queue."""
        if not self.queued:
            return []
        taken = {rank for run in self.running.values() for rank in run.pending}
        ready: list[Run] = []
        waiting: list[Run] = []
        for run in self.queued:
            (waiting if taken & set(run.ranks) else ready).append(run)
            taken |= set(run.ranks)
        self.queued = waiting
        return ready

    def start(self, run: Run, now: float) -> None:
        """Queued → running."""
        run.started_at = now
        run.deadline = None if run.timeout is None else now + run.timeout
        run.pending = set(run.ranks)
        if run.timeout is not None:
            run.final_poll_at = now + max(run.timeout / 2, run.timeout - _LAST_LOOK)
        self.last_on.update(dict.fromkeys(run.ranks, run.number))
        self.running[run.number] = run

    def run_on(self, rank: int) -> Run | None:
        """The run that holds ``rank`` now."""
        return next((r for r in self.running.values() if rank in r.pending), None)

    @property
    def busy_ranks(self) -> set[int]:
        return {rank for run in self.running.values() for rank in run.pending}

    def next_deadline(self) -> float | None:
        """The next moment at which a run's state changes by itself."""
        times = [t for r in self.running.values() for t in r.wakeups() if t is not None]
        return min(times, default=None)
