"""Pausing: pauses and resumes ranks of runs, and lets clients follow runs that others have started. Pure.

Pauses are data of a run, not a phase, because its other ranks may be running or may have ended. A rank is *pausing*
from the request, or from the start of a step, until it reports that it is paused. Its report counts only if the rank
had received every `ResumeRanks` by then (see core/messages/debug). docs/design/states.md has the rules.
"""

from jdist.controller.model.model import Model
from jdist.controller.model.runs import Run
from jdist.controller.model.world import Node
from jdist.core.messages.base import Ack
from jdist.core.messages.debug import (
    FollowRun,
    Pause,
    PauseRanks,
    RankPaused,
    RanksResumed,
    Resume,
    ResumeRanks,
    RunFollowed,
)
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.status import Notice
from jdist.core.ranks import describe_ranks


class Pausing:
    """Handles messages of clients and ranks about pauses."""

    def __init__(self, model: Model):
        self._model = model

    def handle_pause(self, client: str, message: Pause) -> None:
        """Ask ranks to pause, even if they are pausing already, since the end of a step may be far away."""
        m = self._model
        reason = m.unknown_ranks(message.ranks) if message.ranks else ""
        runs = [run for run in m.runs.running.values() if message.run in (0, run.number) and not run.is_own]
        on = {run.number: run.pending.intersection(message.ranks or run.pending) for run in runs}
        if reason or not any(on.values()):
            m.refuse(client, message.request, reason or self._nothing_to_pause(message))
            return
        if all(run.abort_reason for run in runs if on[run.number]):
            m.refuse(client, message.request, "what is running is already being stopped")
            return
        for run in runs:
            if run.inside or run.abort_reason:  # its ranks are paused already
                continue
            asked = sorted(on[run.number] - run.paused.keys())
            run.pausing.update(asked)
            for node_rank, workers in m.world.workers_by_node(asked).items():
                m.send_to_node(node_rank, PauseRanks(run.number, workers))
        m.send(client, RankReply(message.request, -1, Ack()))

    def _nothing_to_pause(self, message: Pause) -> str:
        book, where = self._model.runs, f" on {describe_ranks(message.ranks)}" if message.ranks else ""
        if any(run.number == message.run for run in book.queued):
            return f"run {message.run} has not started: it is queued behind other runs"
        if message.run and message.run not in book.running:
            return f"there is no unfinished run {message.run}"
        return f"nothing is running{where} that could be paused"

    def handle_rank_paused(self, _: Node, message: RankPaused) -> None:
        """Record that a rank is paused, unless it has been resumed in the meantime."""
        m = self._model
        run = m.runs.running.get(message.run)
        if run is None or run.abort_reason or message.rank not in run.pending:
            return
        if message.resumes < run.resumes.get(message.rank, 0):
            return
        run.record_pause(message, m.now)
        m.tell(run, message)
        if run.time_left is not None and not run.has_told_time:
            run.has_told_time = True
            left = f"{max(run.time_left, 0.0):.0f} s left"
            m.tell(run, Notice(f"the timeout of run {run.number} is suspended while ranks are paused ({left})"))
        for other in m.runs.running.values():
            if other.is_stalled:
                other.poll_no_later_than(m.now)  # it may be waiting for this rank

    def handle_resume(self, client: str, message: Resume) -> None:
        """Resume ranks. To continue also withdraws pending requests to pause."""
        m = self._model
        reason = m.unknown_ranks(message.ranks) if message.ranks else ""
        if not reason and message.how == "until" and message.line < 1:
            reason = "until needs a line number of at least 1"
        told = {}
        for run in m.runs.running.values():
            stopped = run.paused.keys() | (run.pausing if message.how == "continue" else set())
            told[run.number] = stopped.intersection(message.ranks or stopped)
        if not reason and not any(told.values()):
            reason = f"{describe_ranks(message.ranks, 'is')} not paused" if message.ranks else "no rank is paused"
        if reason:
            m.refuse(client, message.request, reason)
            return
        for number, ranks in told.items():
            if ranks:
                self._resume(m.runs.running[number], sorted(ranks), message)
        m.send(client, RankReply(message.request, -1, Ack()))

    def _resume(self, run: Run, ranks: list[int], message: Resume) -> None:
        m = self._model
        run.end_pauses(ranks, m.now)
        for rank in ranks:
            run.resumes[rank] = run.resumes.get(rank, 0) + 1
        if message.how != "continue":
            run.pausing.update(ranks)
        for node_rank, workers in m.world.workers_by_node(ranks).items():
            m.send_to_node(node_rank, ResumeRanks(run.number, workers, message.how, message.line))
        m.tell(run, RanksResumed(run.number, tuple(ranks), message.how))

    def handle_follow(self, client: str, message: FollowRun) -> None:
        """Send the run's current state, and then its messages, to this client as well."""
        m = self._model
        queued = {run.number: run for run in m.runs.queued}
        run = m.runs.running.get(message.run) or queued.get(message.run)
        if run is None:
            m.refuse(client, message.request, f"there is no unfinished run {message.run}")
            return
        if client not in run.audience:
            run.followers.append(client)
        followed = RunFollowed(
            message.request,
            run.number,
            run.spec.code,
            run.ranks,
            tuple(sorted(run.pending)) if run.started_at is not None else run.ranks,
            m.now - run.started_at if run.started_at is not None else -1.0,
            tuple(run.paused[rank] for rank in sorted(run.paused)),
            run.verdict,
            {rank: end.kind for rank, end in sorted(run.ends.items())},
        )
        m.send(client, followed)

    def forget(self, client: str) -> None:
        """Remove a client that has disconnected."""
        for run in [*self._model.runs.running.values(), *self._model.runs.queued]:
            if client in run.followers:
                run.followers.remove(client)
