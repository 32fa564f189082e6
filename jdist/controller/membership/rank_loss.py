"""Find lost nodes by their heartbeats, and replace lost ranks. Pure.

Only this module acts on a loss. The order, with who is called for what, is in docs/design/recovery.md ("Who acts").

The states of a node, and all transitions between them::

    in reach ──silent for beat_timeout──► unreachable ──silent for node_grace──► gone ──an agent joins──► in reach
     ▲    │                                  │                                    ▲
     │    └──its agent's process ended───────┼────────────────────────────────────┘
     └───────────anything is heard───────────┘

An unreachable node has lost nothing: its ranks keep running, messages to it and from it arrive in order when the
network is back (wire/transport/streams), and a run that waits for it keeps waiting. The liveness connection
(wire/bulk/server) tells a dead agent from a network that is cut: only the end of a process closes it in order.
"""

import math
from collections.abc import Callable

from jdist.controller.membership.formation import Formation
from jdist.controller.model.model import Model
from jdist.controller.model.phases import transition
from jdist.controller.model.runs import Run
from jdist.controller.model.world import Node, Rank
from jdist.controller.queries import Queries
from jdist.controller.runs.lifecycle import OwnRuns, RunLifecycle
from jdist.controller.runs.saving import Saves
from jdist.controller.verdict.decide import decide_on_loss, is_crash
from jdist.controller.verdict.wait_graph import RankSnapshot
from jdist.core.errors import Remedy
from jdist.core.messages.membership import GroupCreated, LivenessRenewed, Restart, StartWorker, WorkerDown, WorkerUp
from jdist.core.messages.observation import VerdictChanged
from jdist.core.messages.runs import CellRefused, RankDone
from jdist.core.messages.status import Notice
from jdist.core.outcome import ErrorInfo
from jdist.core.ranks import describe_ranks

_ATTEMPTS = 3  # Processes in a rank's place that may end, one after the other, before they have joined the world.
_EXPLAINED = 1.0  # Seconds in which a poll of the other ranks may explain the loss, before they are freed.


class RankLoss:
    """Handles the ends of workers and nodes, and replaces workers."""

    def __init__(
        self, model: Model, queries: Queries, runs: RunLifecycle, formation: Formation, own_runs: OwnRuns, saves: Saves
    ):
        self._model = model
        self._saves = saves
        self._queries = queries
        self._runs = runs
        self._formation = formation
        self._own_runs = own_runs
        self.on_loss: Callable[[Rank], None] = lambda _: None

    def handle_worker_up(self, node: Node, message: WorkerUp) -> None:
        rank = self._model.world.rank_of(node, message.worker)
        if rank is not None and rank.incarnation == message.incarnation and rank.phase == "starting":
            transition(rank, "up", f"process {message.pid}")
            rank.was_up = True
            rank.pid = message.pid
            rank.inherits = message.inherits
            if rank.is_expected_to_inherit and not message.inherits:
                why = f"its process could not be freed: {message.why_fresh}" if message.why_fresh else ""
                self._model.broadcast(self._model.fresh_notice(rank.rank, why))

    def handle_worker_down(self, node: Node, message: WorkerDown) -> None:
        """A worker's process ended: replace it, unless it cannot start or the policy on_death forbids it."""
        m = self._model
        rank = m.world.rank_of(node, message.worker)
        if rank is None or rank.incarnation != message.incarnation or rank.phase == "gone":
            return
        never_up, never_held = rank.phase == "starting", rank.generation == 0
        rank.observed_last = message.observation
        rank.is_saving = message.hands_over
        self._lose(rank, message.reason, last_run=message.last_run)
        where = m.world.where(rank.rank)
        if never_up and not rank.incarnation:
            self._formation.fail(f"{where} could not be started: {message.reason}")
        elif m.settings.on_death == "replace" and never_held and rank.attempts >= _ATTEMPTS:
            times = f"{where} was started {rank.attempts} times, and ended each time before it had joined the world"
            self._formation.fail(f"{times}; the last time: {message.reason}")
        elif m.settings.on_death == "replace":
            if never_held and rank.attempts:
                again = f"attempt {rank.attempts + 1} of {_ATTEMPTS}"
                m.broadcast(Notice(f"{where} ended before it had joined the world and is started again ({again})"))
            self.replace(rank)
        elif m.settings.on_death == "wait":
            why = m.missing_ranks()
            self._formation.abandon(why)
            self._formation.refuse_waiting(why)
            text = f"the place of rank {rank.rank} stays empty; the other ranks keep their names"
            what = "start it again, with its names" if message.hands_over else "start a fresh one"
            m.broadcast(Notice(text, remedies=(Remedy("restart", what, str(rank.rank)),)))
        else:
            m.ending = f"{where} is lost, and the cluster was started to stop then: {message.reason}"

    def _lose(self, rank: Rank, reason: str, *, is_wanted: bool = False, last_run: int | None = None) -> None:
        """The rank has no process: answer its queries, abort its run. ``is_wanted``: a restart, without a notice.

        ``last_run``: its node has begun no later run, and will say so of one that is on its way.
        """
        m = self._model
        transition(rank, "gone", reason)
        rank.pid = 0
        rank.death, rank.died_at = reason, m.now
        m.is_dirty = True
        if m.phase == "forming":
            self._formation.abandon(f"rank {rank.rank} is lost")
        where = m.world.where(rank.rank)
        self._queries.answer_for(rank.rank, f"{where} is gone: {reason}")
        self.on_loss(rank)
        self._saves.handle_loss(rank)
        if not is_wanted:
            m.broadcast(Notice(f"{where} is lost: {reason}"))
        for run in m.runs.runs_on(rank.rank):
            if last_run is not None and run.number > last_run:
                self._decide_not_begun(run)
            else:
                self._end_part(run, rank, reason)
        for other in list(m.runs.running.values()):
            if rank.rank in other.ends and other.is_stalled:  # ranks may wait for this one, whose part has ended
                if is_wanted:
                    self._runs.abort(other, "lost")
                other.poll_no_later_than(m.now)

    def _end_part(self, run: Run, rank: Rank, reason: str) -> None:
        """End a lost rank's part of a run. The run is aborted once it has a verdict, for which others may be polled."""
        m = self._model
        notes = [loss.note for loss in run.losses.values()]
        is_alike = reason in notes or (is_crash(reason) and any(map(is_crash, notes)))
        if not run.abort_reason or is_alike or run.verdict is None:
            where = m.world.where(rank.rank)
            run.losses[rank.rank] = RankSnapshot(where, "lost", rank.observed_last, note=reason)
            run.verdict = decide_on_loss(run.number, run.losses, run.seen)
        if is_crash(reason) and not run.abort_reason:
            transition(run, "diagnosing", reason)  # the verdict is sent once that is over
            run.diagnose_until = m.now + _EXPLAINED
            run.poll_no_later_than(m.now)
        elif run.verdict is not None:
            m.tell(run, VerdictChanged(run.number, run.verdict))
        seconds, error = m.now - (run.started_at or m.now), ErrorInfo("RankLost", reason)
        self._runs.record_rank_done(RankDone(run.number, rank.rank, "lost", seconds, error=error))
        if run.phase != "diagnosing":
            self._runs.abort(run, "lost")

    def handle_not_begun(self, node: Node, message: CellRefused) -> None:
        """A node has not begun a cell because one of its workers has ended, which it reports separately."""
        run = self._model.runs.running.get(message.run)
        if run is not None:
            ranks = (self._model.world.rank_of(node, worker) for worker in message.workers)
            run.not_begun |= {r.rank for r in ranks if r is not None and r.rank in run.pending}
            self._decide_not_begun(run)

    def _decide_not_begun(self, run: Run) -> None:
        """Once both reports are here: put the run back into the queue if no rank has begun it, else end it as lost."""
        m = self._model
        lost = [n for n in sorted(run.not_begun) if m.world.ranks[n].phase != "held"]
        if not lost:
            return
        where = m.world.where(lost[0])
        has_other_place = run.is_own or run.spec.is_setup or run.inside
        if run.not_begun == set(run.ranks) and not (run.abort_reason or has_other_place):
            m.runs.put_back(run, f"{where} died before any rank began the cell")
            if m.settings.on_death != "replace":
                self._runs.end_waiting(m.missing_ranks())
            else:
                m.tell(run, Notice(f"{where} died before the cell began; it runs once the rank is replaced"))
            return
        for number in sorted(run.not_begun - set(lost)):
            self._runs.record_rank_done(RankDone(run.number, number, "interrupted"))
        run.not_begun = set()
        for number in lost:
            self._end_part(run, m.world.ranks[number], f"{m.world.ranks[number].death}, before it began the cell")

    def replace(self, rank: Rank) -> None:
        """Have the agent start another process for a rank that is gone, if its node is here."""
        m = self._model
        if not m.world.nodes[rank.node_rank].is_here:
            return
        m.world.ranks[rank.rank] = fresh = rank.replaced(rank.incarnation + 1)
        m.is_dirty = True
        self._own_runs.drop_replays(rank.rank)
        if fresh.is_fresh and not fresh.is_expected_to_inherit:
            m.broadcast(m.fresh_notice(rank.rank))
        start = StartWorker(rank.worker, rank.rank, fresh.incarnation, keeps_names=fresh.is_expected_to_inherit)
        m.send_to_node(rank.node_rank, start)

    def handle_tick(self) -> None:
        """Replace the ranks that are not free within the grace after their run was aborted.

        Their agents have them hand their names over first, if they can: see docs/design/recovery.md.
        """
        m = self._model
        for run in list(m.runs.running.values()):
            if run.give_up_at is None or m.now < run.give_up_at:
                continue
            run.give_up_at = None
            grace = m.settings.interrupt_grace
            for number in sorted(run.pending):
                rank = m.world.ranks[number]
                if not m.world.nodes[rank.node_rank].was_in_reach(m.now - grace):
                    run.give_up_at = m.now + grace  # it may not have heard of the interrupt yet
                    continue
                if m.runs.run_on(number) is not run:
                    run.give_up_at = m.now + grace  # it is stopped once the inner run has been
                    continue
                if run.handlers.get(number, m.now) > m.now:
                    run.give_up_at = min(run.give_up_at or math.inf, run.handlers[number])
                    continue
                rank.is_saving = True
                self._lose(rank, f"it did not stop within {grace:.0f} s of the interrupt and was started again")
                self.replace(rank)

    def handle_restart(self, client: str, message: Restart) -> None:
        """Replace ranks at a client's request, which is answered when the world has been formed again."""
        m = self._model
        missing = m.missing_nodes()
        reason = missing and f"{missing}; the other ranks keep their names"
        reason = reason or m.unknown_ranks(message.ranks)
        if not reason and any(r.phase == "gone" and r.rank not in message.ranks for r in m.world.ranks.values()):
            reason = m.missing_ranks()
        if reason:
            m.refuse(client, message.request, reason)
            return
        for number in sorted(set(message.ranks)):
            rank = m.world.ranks[number]
            if rank.phase != "gone":
                self._lose(rank, "restarted by the user", is_wanted=True)
            rank.attempts = 0
        for number in sorted(set(message.ranks)):
            self.replace(m.world.ranks[number])
        self.mend()
        answer = GroupCreated(f"{describe_ranks(message.ranks, 'is')} fresh")
        self._formation.await_next(client, message.request, answer)

    def mend(self) -> None:
        """Try again to form a world that failed: replace every rank without a process, and a store that failed."""
        m = self._model
        if m.phase != "failed":
            return
        transition(m, "gathering", "what it lacks is replaced")
        m.reason = ""
        for rank in list(m.world.ranks.values()):
            if rank.phase == "gone":
                rank.attempts = 0
                self.replace(rank)
        self._formation.mend_store()

    def node_gone(self, node: Node, reason: str) -> None:
        """A node's agent is gone and its ranks are lost. Before ranks are numbered, its place is free again."""
        m = self._model
        m.drop_liveness_names(node.agent)
        m.forget(node.agent)
        self._queries.answer_for_node(node.agent, f"node {node.node_rank} is gone: {reason}")
        node.agent = ""
        node.is_unreachable = False
        if not m.world.ranks:
            del m.world.nodes[node.node_rank]
            return
        why = f"{node.name} is gone: {reason}"
        if m.settings.on_death == "stop":
            m.ending = f"{why}; the cluster was started to stop then"
        for number in m.world.topology.ranks_at(node.node_rank):
            rank = m.world.ranks[number]
            if rank.phase != "gone":
                self._lose(rank, why)
        self._formation.abandon(why)
        self._formation.refuse_waiting(why)


class Heartbeats:
    """Watches over when each node was last heard of."""

    def __init__(self, model: Model, rank_loss: RankLoss):
        self._model = model
        self._rank_loss = rank_loss

    def record(self, node: Node) -> None:
        """A node's agent said something, if only that it lives."""
        m = self._model
        if node.is_unreachable:
            node.is_unreachable = False
            node.back_at = m.now
            silence = m.now - node.last_heard
            m.broadcast(Notice(f"{node.name} is back after {silence:.1f} s: nothing was lost"))
        node.last_heard = m.now

    def renew_liveness(self, node: Node) -> None:
        """Let its agent dial another liveness connection; no earlier one tells anything any more."""
        self._model.drop_liveness_names(node.agent)
        self._model.send(node.agent, LivenessRenewed(self._model.new_liveness_name(node.agent)))

    def handle_tick(self) -> None:
        """Report the nodes that have become unreachable, and give up those that have been for too long."""
        m = self._model
        for node in [n for n in m.world.nodes.values() if n.is_here]:
            silence = m.now - node.last_heard
            if silence >= node.grace(m.settings):
                advice = _advice(node) if node.facts.is_carried else ""
                self._rank_loss.node_gone(node, f"last heard {silence:.0f} s ago{advice}")
            elif silence >= m.settings.beat_timeout and not node.is_unreachable:
                node.is_unreachable = True
                m.broadcast(Notice(self._describe(node)))

    def silences(self) -> tuple[str, ...]:
        """A sentence for each unreachable node."""
        return tuple(self._describe(n) for n in self._model.world.nodes.values() if n.is_unreachable)

    def _describe(self, node: Node) -> str:
        silence = self._model.now - node.last_heard
        left = max(0.0, node.grace(self._model.settings) - silence)
        return f"{node.name} is unreachable: last heard {silence:.1f} s ago; its ranks are kept for {left:.0f} s"

    def next_wakeup(self) -> float | None:
        """When a node's state changes next if nothing is heard."""
        settings = self._model.settings
        nodes = [(n, n.grace(settings)) for n in self._model.world.nodes.values() if n.is_here]
        waits = (n.last_heard + (gone if n.is_unreachable else min(settings.beat_timeout, gone)) for n, gone in nodes)
        return min(waits, default=None)


def _advice(node: Node) -> str:
    """What outlives longer breaks of a login that carries a node's connections."""
    host = node.facts.launcher_name or "HOST"
    return f"; a cluster that is started with --at {host} outlives longer breaks of the login"
