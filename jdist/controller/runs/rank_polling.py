"""Looks: once a rank is blocked, all are asked what they do, until it is clear whether its run can finish. Pure.

Nobody is asked while the runs move. A rank says by itself when it has been blocked for a moment (Stalled); from then on
the world is looked at now, whenever a part of the run ends or another rank stalls, and now and then in between, until
nobody is blocked. One look is under way at a time; it ends with the last answer or at its deadline, and each run with
blocked ranks is judged by it. A rank says only once that it is blocked: where ranks have not answered, as on a machine
that is overloaded, what was told stands, and they are asked again. What a rank does after it was asked does not count:
its part is as it was when the look began, and a rank that has since begun a cell may do anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import structs

from jdist.controller.model.model import Model
from jdist.controller.model.runs import Run
from jdist.controller.runs.lifecycle import RunLifecycle
from jdist.controller.verdict.decide import aborted, is_settled, overdue, verdict
from jdist.controller.verdict.wait_graph import Part, Seen
from jdist.core.messages.observation import Observation, Observe, Stalled, VerdictChanged
from jdist.core.messages.protocol import RankQuery, RankReply
from jdist.core.messages.status import Notice
from jdist.core.ranks import describe_ranks
from jdist.core.verdict import Verdict

_RECENT = 8
"""Calls of each group that a rank tells of, for what differs between ranks."""
_PATIENCE = 1.0
"""Seconds until a look is over although a rank has not answered; its agent answers for it before."""
_AGAIN = 0.25
"""Until the second look, where one is not proof enough."""
_SHOWN = 1.0
"""Between two looks while a verdict stands: it is withdrawn when the run moves."""
SLOW = 5.0
"""Seconds of waiting until it is said for whom."""
_NEARLY_DUE = 1.0
"""Seconds before a run's deadline from which on everything that holds it up is said."""


@dataclass
class _Round:
    """One look at the world."""

    name: str
    until: float
    asked: set[int]
    began: dict[int, tuple[int, bool]]
    """The run that each rank began last, and whether it was still in it, when the look began."""
    answers: dict[int, Observation] = field(default_factory=dict)


class RankPoller:
    """Looks at the world while a rank is blocked, and judges the runs."""

    def __init__(self, model: Model, runs: RunLifecycle):
        self._model = model
        self._runs = runs
        self._last = 0
        self._round: _Round | None = None

    def stalled(self, message: Stalled) -> None:
        """A rank is blocked: look at once."""
        run = self._model.runs.running.get(message.run)
        if run is not None and not run.abort_reason and message.rank in run.pending:
            run.is_stalled = True
            run.poll_no_later_than(self._model.now)

    def next_wakeup(self) -> float | None:
        """When the look under way is over at the latest, or when the next one is due."""
        if self._round is not None:
            return self._round.until
        return min((t for run in self._model.runs.running.values() for t in self._times(run)), default=None)

    def _times(self, run: Run) -> list[float]:
        return [] if run.abort_reason else [t for t in (run.poll_at, run.final_poll_at) if t is not None]

    def handle_tick(self) -> None:
        """Begin a look if one is due, end one that is overdue."""
        c = self._model
        if self._round is not None and c.now >= self._round.until:
            self._judge()
        due = self.next_wakeup()
        if self._round is None and due is not None and c.now >= due:
            self._begin()

    def _begin(self) -> None:
        c = self._model
        self._last += 1
        alive = tuple(n for n, rank in c.world.ranks.items() if rank.phase == "held")
        began = {number: self._position(number) for number in c.world.ranks}
        self._round = _Round(f"look-{self._last}", c.now + _PATIENCE, set(alive), began)
        for run in c.runs.running.values():
            run.poll_at = None
            if run.final_poll_at is not None and c.now >= run.final_poll_at:
                run.final_poll_at = None
        for node_rank, ranks in c.world.by_node(alive).items():
            c.send_to_node(node_rank, RankQuery(self._round.name, ranks, Observe(_RECENT)))

    def _position(self, rank: int) -> tuple[int, bool]:
        """The run that the rank began last, and whether it is still in it."""
        return self._model.runs.last_on.get(rank, 0), self._model.runs.run_on(rank) is not None

    def note(self, answer: RankReply) -> None:
        """A rank said what it does."""
        current = self._round
        if current is None or answer.request != current.name or answer.rank not in current.asked:
            return
        current.asked.discard(answer.rank)
        if isinstance(answer.body, Observation):
            current.answers[answer.rank] = answer.body
        if not current.asked:
            self._judge()

    # ------------------------------------------------------------ the end of a look

    def _judge(self) -> None:
        c = self._model
        current, self._round = self._round, None
        if current is None:
            return
        for run in list(c.runs.running.values()):
            if not run.abort_reason and (run.is_stalled or run.phase == "diagnosing" or self._is_nearly_due(run)):
                self._judge_run(run, {number: self._seen(number, run, current) for number in c.world.ranks})

    def _is_nearly_due(self, run: Run) -> bool:
        return run.deadline is not None and run.deadline - self._model.now <= _NEARLY_DUE

    def _seen(self, rank: int, run: Run, current: _Round) -> Seen:
        """The rank as it was when the look began; of one that has begun or ended a cell since, nothing is known."""
        c = self._model
        where = c.world.where(rank)
        look = current.answers.get(rank)
        number, is_in_it = current.began.get(rank, (0, True))
        if c.world.ranks[rank].phase != "held":
            return Seen(where, "lost")
        if self._position(rank) != current.began.get(rank):
            return Seen(where, "elsewhere")
        if is_in_it:
            return (
                Seen(where, "running", look)
                if number == run.number
                else Seen(where, "elsewhere", look, note=f"run {number}")
            )
        return self._over(rank, run, where, look)

    def _over(self, rank: int, run: Run, where: str, look: Observation | None) -> Seen:
        end = run.ends.get(rank)
        if end is None:
            return Seen(where, "free", look)
        part: Part = "done" if end.kind == "value" else "failed"
        return Seen(where, part, look, self._model.now - end.at, end.failure)

    def _judge_run(self, run: Run, seen: dict[int, Seen]) -> None:
        c = self._model
        if run.phase == "diagnosing":
            self._end_doomed(run, seen)
            return
        is_nearly_due = self._is_nearly_due(run)
        found = verdict(run.number, seen, 0.0 if is_nearly_due else SLOW)
        if found is None and is_nearly_due:
            found = overdue(run.number, seen)
        waits = [s.doing.seconds for s in seen.values() if s.part == "running" and s.is_blocked]
        unknown = {r for r, s in seen.items() if s.is_unknown}
        run.is_stalled = bool(waits) or (run.is_stalled and bool(unknown))
        if found is not None and found.is_certain and not is_settled(found, seen):
            calls = tuple((r, c.op, c.started) for r in found.waiting for c in seen[r].doing.calls)
            if run.unconfirmed != (found.kind, found.responsible, calls):
                run.unconfirmed = (found.kind, found.responsible, calls)
                run.poll_no_later_than(c.now + _AGAIN)
                return
        if unknown and run.is_stalled and (found is None or _stands(run.verdict, found, unknown)):
            run.poll_no_later_than(c.now + _SHOWN)
            return
        self._tell(run, found)
        if run.abort_reason:
            return
        if found is not None:
            run.poll_no_later_than(c.now + _SHOWN)
        elif waits:
            run.poll_no_later_than(c.now + max(_AGAIN, SLOW - max(waits)))

    def _end_doomed(self, run: Run, seen: dict[int, Seen]) -> None:
        """A rank is lost. That the calls did not fit explains more than that; then the others are freed."""
        told = run.verdict
        has_moved = any(s.part == "elsewhere" and s.look is None for r, s in seen.items() if r in run.ranks)
        if has_moved and run.diagnose_until is not None and self._model.now < run.diagnose_until:
            run.poll_no_later_than(self._model.now)  # a rank has failed meanwhile: what in, is seen at the next look
            return
        found = aborted(run.number, told.responsible[0], seen) if told is not None else None
        if found is not None and told is not None:
            run.verdict = structs.replace(found, details=(*found.details, told.reason), remedies=())
            self._model.send(run.client, VerdictChanged(run.number, run.verdict))
        self._runs.end_diagnosis(run)

    def _tell(self, run: Run, found: Verdict | None) -> None:
        """Show the verdict, or take it back.

        Where a rank failed and others can only wait for it, they are freed; so is a fresh rank on which a setup cell
        waits for ranks that do not run it.
        """
        c = self._model
        stands = found is not None and found.is_certain and run.verdict is not None and _is_same(found, run.verdict)
        if not stands and found != run.verdict:
            run.verdict = found
            c.send(run.client, VerdictChanged(run.number, found))
        if found is None or not found.is_certain:
            return
        if run.is_replay:
            ranks = describe_ranks(run.ranks)
            text = f"the setup cell could not be run again on fresh {ranks} alone: {found.reason}; what all ranks must"
            c.broadcast(Notice(f"{text} call together belongs in a cell that they all run again"))
        if run.is_replay or any(r in run.ends and run.ends[r].kind == "error" for r in found.responsible):
            self._runs.abort(run, "failed")


def _stands(told: Verdict | None, found: Verdict, unknown: set[int]) -> bool:
    """Whether a certain verdict still holds: one of whom it tells does not answer, and no other is certain."""
    return told is not None and told.is_certain and not found.is_certain and not unknown.isdisjoint(told.responsible)


def _is_same(one: Verdict, other: Verdict) -> bool:
    """But for the seconds."""
    return (one.kind, one.responsible, one.waiting, one.reason) == (
        other.kind,
        other.responsible,
        other.waiting,
        other.reason,
    )
