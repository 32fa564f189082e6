"""Rank polling: once a rank is blocked, all ranks are polled until it is clear whether its run can finish. Pure.

No rank is asked while the runs make progress. A rank reports by itself that it has been blocked for a moment
(``Stalled``). From then on the world is polled at once, whenever a part of the run ends or another rank stalls, and at
intervals in between, until no rank is blocked. There is one poll at a time; it ends with the last answer or at its
deadline, and then a verdict is decided on each run that has blocked ranks.

A rank reports a stall only once. If ranks do not answer, as on an overloaded machine, the present verdict stands and
they are polled again. What a rank does after it was asked does not count: its part is as it was when the poll began,
and a rank that has begun a cell since then may do anything. If ranks have failed because the connection to another one
ended, and neither a rank nor its agent has answered, that rank may be dead. No verdict is given until this is known.
"""

from dataclasses import dataclass, field

from jdist.controller.model.model import Model
from jdist.controller.model.runs import Run
from jdist.controller.model.world import Node
from jdist.controller.runs.lifecycle import RunLifecycle
from jdist.controller.verdict.decide import decide, decide_at_deadline, decide_on_loss, is_confirmed
from jdist.controller.verdict.wait_graph import Part, PolledRanks, Ranks, RankSnapshot, is_behind
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.observation import Observation, Observe, Stalled, Verdict, VerdictChanged
from jdist.core.messages.protocol import RankQuery, RankReply
from jdist.core.messages.status import Notice
from jdist.core.rank_code import is_script
from jdist.core.ranks import RankSet, describe_ranks

_RECENT_CALLS = 8  # Calls of each group that a rank reports, to compare them between ranks.
_DEADLINE = 1.0  # Seconds until a poll ends although a rank has not answered; its agent answers for it earlier.
_DEADLINE_PER_RANK = 0.001  # Seconds added for each rank, since reading an answer takes time.
_CONFIRM_AFTER = 0.25  # Seconds until the second poll, if one is not proof enough.
_REPEAT_AFTER = 1.0  # Seconds between two polls while a verdict stands: it is withdrawn when the run makes progress.
SLOW_AFTER = 5.0  # Seconds of waiting until it is reported for which rank.
_SOON = 0.05  # Seconds until the next poll while the loss of a rank has to be explained.
_NEAR_DEADLINE = 1.0  # Seconds before a run's deadline from which on everything that holds it up is reported.


@dataclass
class _Poll:
    """One poll of all ranks."""

    request: str
    deadline: float
    asked: set[int]  # The ranks that have not answered yet.
    positions: dict[int, tuple[int, int]]  # Each rank's last run, and that it was in (0: none), at the poll's start.
    answers: dict[int, Observation] = field(default_factory=dict)


class RankPoller:
    """Polls the ranks while one of them is blocked, and sets the runs' verdicts."""

    def __init__(self, model: Model, runs: RunLifecycle):
        self._model = model
        self._runs = runs
        self._last = 0
        self._poll: _Poll | None = None

    def handle_stalled(self, node: Node, message: Stalled) -> None:
        run, rank = self._model.runs.running.get(message.run), self._model.world.rank_of(node, message.worker)
        if run is not None and rank is not None and not run.abort_reason and rank.rank in run.pending:
            run.is_stalled = True
            run.poll_no_later_than(self._model.now)

    def next_wakeup(self) -> float | None:
        """The deadline of the present poll, or when the next one is due."""
        if self._poll is not None:
            return self._poll.deadline
        active = [run for run in self._model.runs.running.values() if not run.abort_reason]
        return min((t for run in active for t in (run.poll_at, run.final_poll_at) if t is not None), default=None)

    def handle_tick(self) -> None:
        now = self._model.now
        if self._poll is not None and now >= self._poll.deadline:
            self._end_poll()
        due = self.next_wakeup()
        if self._poll is None and due is not None and now >= due:
            self._begin_poll()

    def _begin_poll(self) -> None:
        m = self._model
        self._last += 1
        alive = tuple(n for n, rank in m.world.ranks.items() if rank.phase == "held")
        positions = {number: self._position(number) for number in m.world.ranks}
        deadline = m.now + _DEADLINE + _DEADLINE_PER_RANK * len(alive)
        self._poll = _Poll(f"poll-{self._last}", deadline, set(alive), positions)
        for run in m.runs.running.values():
            run.poll_at = None
            if run.final_poll_at is not None and m.now >= run.final_poll_at:
                run.final_poll_at = None
        for node_rank, workers in m.world.workers_by_node(alive).items():
            m.send_to_node(node_rank, RankQuery(self._poll.request, workers, Observe(_RECENT_CALLS)))

    def _position(self, rank: int) -> tuple[int, int]:
        """The last run that the rank began, and the one that it is in; 0: none."""
        run = self._model.runs.run_on(rank)
        return self._model.world.ranks[rank].last_run, 0 if run is None else run.number

    def handle_rank_reply(self, reply: RankReply) -> None:
        """Record what a rank does; the last answer ends the poll."""
        poll = self._poll
        if poll is None or reply.request != poll.request or reply.rank not in poll.asked:
            return
        poll.asked.discard(reply.rank)
        if isinstance(reply.body, Observation):
            poll.answers[reply.rank] = reply.body
        if not poll.asked:
            self._end_poll()

    def _end_poll(self) -> None:
        poll, self._poll = self._poll, None
        if poll is None:
            return
        topology = self._model.world.topology
        for run in list(self._model.runs.running.values()):
            is_near = run.deadline is not None and run.deadline - self._model.now <= _NEAR_DEADLINE
            if run.abort_reason or not (is_near or run.is_stalled or run.phase == "diagnosing"):
                continue
            found = {r: self._snapshot(r, topology.where(r), run, poll) for r in self._model.world.ranks}
            ranks = PolledRanks(found)
            if run.phase == "diagnosing":
                self._end_diagnosis(run, ranks)
            else:
                self._decide(run, ranks, is_near=is_near)

    def _snapshot(self, rank: int, where: str, run: Run, poll: _Poll) -> RankSnapshot:
        """The rank when the poll began. Nothing is known of a rank that has begun or ended a cell since then."""
        if rank in run.losses:
            return run.losses[rank]
        observation = poll.answers.get(rank)
        if self._model.world.ranks[rank].phase != "held":
            return RankSnapshot(where, "lost")
        position = poll.positions.get(rank, (0, -1))
        if self._position(rank) != position:
            return RankSnapshot(where, "elsewhere")
        number = position[1]
        paused = {r.number: _place(at) for r in self._model.runs.running.values() if (at := r.paused.get(rank))}
        if rank in run.pending:  # maybe around the run in which it is
            note = "" if number == run.number else f"run {number}"
            return RankSnapshot(where, "running", observation, note=note, paused=paused.get(run.number, ""))
        if number:
            return RankSnapshot(where, "elsewhere", observation, note=f"run {number}", paused=paused.get(number, ""))
        end = run.ends.get(rank)
        if end is None:
            return RankSnapshot(where, "free", observation)
        part: Part = "done" if end.kind == "value" else "failed"
        ago = self._model.now - end.at
        of_script = is_script(run.spec.code)
        return RankSnapshot(where, part, observation, ago, end.failure, is_script=of_script, is_echo=end.is_echo)

    def _decide(self, run: Run, ranks: Ranks, *, is_near: bool) -> None:
        """Set the run's verdict, or wait for the next poll to confirm it. ``is_near``: the run's deadline is near."""
        now = self._model.now
        found = decide(run.number, ranks, 0.0 if is_near else SLOW_AFTER)
        if found is None and is_near:
            found = decide_at_deadline(run.number, ranks)
        waits = [s.activity.seconds for s in ranks.values() if s.part == "running" and s.is_blocked]
        unknown = {r for r, snapshot in ranks.items() if snapshot.is_unknown}
        run.is_stalled = bool(waits) or (run.is_stalled and bool(unknown))
        if found is not None and found.is_certain and _may_hide_a_death(run, ranks, unknown):
            found = None
        if found is not None and found.is_certain and not is_confirmed(found, ranks):
            calls = tuple((r, c.op, c.started) for r in found.waiting for c in ranks[r].activity.calls)
            if run.unconfirmed != (found.kind, found.responsible, calls):
                run.unconfirmed = (found.kind, found.responsible, calls)
                run.poll_no_later_than(now + _CONFIRM_AFTER)
                return
        if unknown and run.is_stalled and (found is None or _still_holds(run.verdict, found, unknown)):
            run.poll_no_later_than(now + _REPEAT_AFTER)
            return
        self._set_verdict(run, found)
        if run.abort_reason:
            return
        if found is not None:
            run.poll_no_later_than(now + _REPEAT_AFTER)
        elif waits:
            run.poll_no_later_than(now + max(_CONFIRM_AFTER, SLOW_AFTER - max(waits)))

    def _set_verdict(self, run: Run, found: Verdict | None) -> None:
        """Send the run's verdict if it has changed, or withdraw it.

        If a rank failed or was lost and others can only wait for it, the run is aborted. So is a run of the controller
        itself that certainly cannot finish, since no user could unblock it: such as the replay of a setup cell in which
        a fresh rank waits for ranks that do not run it.
        """
        is_news = found != run.verdict and not _is_same_finding(found, run.verdict)
        run.verdict = found  # also if only its elapsed times have changed: a status report has those of the last poll
        if is_news:
            self._model.tell(run, VerdictChanged(run.number, found))
        if found is None or not found.is_certain:
            return
        if run.is_replay:
            ranks = describe_ranks(run.ranks)
            text = f"the setup cell could not be run again on fresh {ranks} alone: {found.reason}; what all ranks must"
            self._model.broadcast(Notice(f"{text} call together belongs in a cell that they all run again"))
        elif run.is_own:
            where = f"on ranks {RankSet(run.pending)}, where it could not finish"
            self._model.broadcast(Notice(f"{run.purpose} was ended {where}: {found.reason}"))
        concerned = found.responsible or run.ranks
        if any(self._model.world.ranks[r].phase != "held" for r in concerned):
            self._runs.abort(run, "lost")  # its part had ended; its successor joins when the run is over
        elif run.is_own or (not run.paused and any(r in run.ends and run.ends[r].kind == "error" for r in concerned)):
            self._runs.abort(run, "failed")  # while ranks are paused, someone looks at them: the verdict says it

    def _end_diagnosis(self, run: Run, ranks: Ranks) -> None:
        """Set the verdict on a run that lost a rank, from what the others called. Then abort them."""
        now, run.seen = self._model.now, ranks
        found = decide_on_loss(run.number, run.losses, ranks)
        has_moved = any(s.part == "elsewhere" and s.observation is None for r, s in ranks.items() if r in run.ranks)
        running = [r for r, s in ranks.items() if s.part == "running"]
        is_moving = any(not ranks[r].is_in_known_call or is_behind(r, ranks) for r in running)
        is_open = found.kind == "lost" or not found.responsible
        if run.diagnose_until is not None and now < run.diagnose_until and (has_moved or (is_open and is_moving)):
            # A rank failed in the meantime, or has not come to the call yet: the next poll shows where it is.
            run.poll_no_later_than(now if has_moved else now + _SOON)
            return
        run.verdict = found
        self._model.tell(run, VerdictChanged(run.number, found))
        self._runs.end_diagnosis(run)


def _place(paused: RankPaused) -> str:
    """Such as "train_step, line 8, before all_reduce", or "main, line 3, after ValueError: no such file"."""
    call = f", before {paused.about_to.op}" if paused.about_to is not None else ""
    return f"{paused.at.place}{call}" + (f", after {paused.error}" if paused.error else "")


def _may_hide_a_death(run: Run, ranks: Ranks, unknown: set[int]) -> bool:
    """Whether ranks failed as after another one's death, which may be that of a rank from which nothing was heard."""
    return any(end.is_echo for end in run.ends.values()) and any(ranks[r].observation is None for r in unknown)


def _still_holds(present: Verdict | None, found: Verdict, unknown: set[int]) -> bool:
    """A certain verdict still holds while a rank it names does not answer, unless another one is certain."""
    if present is None or not present.is_certain or found.is_certain:
        return False
    return not unknown.isdisjoint(present.responsible)


def _is_same_finding(found: Verdict | None, present: Verdict | None) -> bool:
    """Whether both are certain and equal apart from elapsed times."""
    if found is None or present is None or not found.is_certain:
        return False
    return found.is_same_finding(present)
