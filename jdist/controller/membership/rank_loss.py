"""Losses: ranks and nodes that go, what that ends (runs, questions, the world), and what replaces them. Pure."""

from __future__ import annotations

from jdist.controller.membership.formation import Forming
from jdist.controller.model.context import Context
from jdist.controller.model.events import Forget
from jdist.controller.model.world import Node, Rank
from jdist.controller.queries import Questions
from jdist.controller.runs.lifecycle import Cells
from jdist.controller.runs.setup_cells import Setup
from jdist.controller.verdict.decide import lost
from jdist.core.messages.groups import GroupCreated
from jdist.core.messages.membership import ReplaceWorker, Restart, WorkerDown, WorkerUp
from jdist.core.messages.observation import VerdictChanged
from jdist.core.messages.runs import RankDone
from jdist.core.messages.status import Notice
from jdist.core.outcome import ErrorInfo
from jdist.core.ranks import those, told_fresh

_ABORT = "(SIGABRT)"
"""gloo ends a process so when a message is larger than what its receiver expects: calls that did not fit."""


_EXPLAINED = 1.0
"""Seconds for the others to be looked at before they are freed."""


class Losses:
    """Keeps the ranks' processes in step with what became of them."""

    def __init__(self, context: Context, questions: Questions, cells: Cells, forming: Forming, setup: Setup):
        self._context = context
        self._questions = questions
        self._cells = cells
        self._forming = forming
        self._setup = setup

    # ------------------------------------------------------------ one rank

    def worker_up(self, message: WorkerUp) -> None:
        """A rank's worker is ready for cells."""
        rank = self._context.world.ranks[message.rank]
        if rank.incarnation == message.incarnation and rank.state == "starting":
            rank.state = "up"
            rank.was_up = True
            rank.pid = message.pid

    def worker_down(self, message: WorkerDown) -> None:
        """A rank's process ended: another takes its place, unless that seems in vain or is not what was asked for."""
        c = self._context
        rank = c.world.ranks[message.rank]
        if rank.incarnation != message.incarnation or rank.state == "gone":
            return
        never_up = rank.state == "starting"
        died_again = c.phase == "forming" and rank.incarnation > 0 and rank.generation == 0
        self._lose(rank, message.reason)
        where = c.world.where(rank.rank)
        if never_up:
            self._forming.fail(f"{where} could not be started: {message.reason}")
        elif died_again:
            self._forming.fail(f"{where} was replaced and died again while it joined the world: {message.reason}")
        elif c.settings.on_death == "replace":
            self._replace(rank)
        elif c.settings.on_death == "wait":
            self._leave_empty(rank)
        else:
            c.ending = f"{where} is lost, and the cluster was started to stop then: {message.reason}"

    def _leave_empty(self, rank: Rank) -> None:
        """The world stands again when somebody has restarted the rank; what waits for it is not left waiting."""
        why = self._context.missing_ranks()
        self._forming.abandon()
        self._forming.refuse_waiting(why)
        self._cells.end_waiting(why)
        restart = f"%dist restart -r {rank.rank} brings a fresh one"
        self._context.tell_all(
            Notice(f"the place of rank {rank.rank} stays empty, the others keep their names; {restart}")
        )

    def _lose(self, rank: Rank, reason: str, *, is_wanted: bool = False) -> None:
        """The rank's process is gone: its part of a run is over, and so is the run's chance to finish.

        One that somebody wants gone is told of when a fresh one is there.
        """
        c = self._context
        rank.state = "gone"
        rank.pid = 0
        rank.death, rank.died_at = reason, c.now
        c.is_dirty = True
        if c.phase == "forming":
            self._forming.abandon()
        where = c.world.where(rank.rank)
        self._questions.answer_for(rank.rank, f"{where} is gone: {reason}")
        if not is_wanted:
            c.tell_all(Notice(f"{where} is lost: {reason}"))
        run = c.runs.run_on(rank.rank)
        if run is not None:
            seconds = c.now - (run.started_at or c.now)
            self._cells.settle(RankDone(run.number, rank.rank, "lost", seconds, error=ErrorInfo("RankLost", reason)))
            run.verdict = lost(run.number, rank.rank, where, reason)
            c.send(run.client, VerdictChanged(run.number, run.verdict))
            if _ABORT in reason and run.pending:
                run.diagnose_until = c.now + _EXPLAINED
                run.poll_no_later_than(c.now)
            else:
                self._cells.halt(run, "lost")

    def _replace(self, rank: Rank) -> None:
        """Have the agent start a fresh process in the rank's place, if the node is here."""
        c = self._context
        if not c.world.nodes[rank.node_rank].is_here:
            return
        c.world.ranks[rank.rank] = fresh = rank.replaced(rank.incarnation + 1)
        c.is_dirty = True
        self._setup.drop_replays(rank.rank)
        if fresh.is_fresh:
            c.tell_all(Notice(told_fresh((rank.rank,))))
        c.send_to_node(rank.node_rank, ReplaceWorker(rank.rank, fresh.incarnation))

    # ------------------------------------------------------------ ranks that are given up

    def give_up(self) -> None:
        """Ranks that could not be freed within the grace are replaced."""
        c = self._context
        for run in list(c.runs.running.values()):
            if run.give_up_at is None or c.now < run.give_up_at:
                continue
            run.give_up_at = None
            grace = c.settings.interrupt_grace
            for number in sorted(run.pending):
                rank = c.world.ranks[number]
                if not c.world.nodes[rank.node_rank].was_in_reach(c.now - grace):
                    run.give_up_at = c.now + grace  # it may not have heard of the interrupt yet
                    continue
                self._lose(rank, f"it did not stop within {grace:.0f} s of the interrupt and was replaced")
                self._replace(rank)

    def restart(self, client: str, message: Restart) -> None:
        """Replace ranks because somebody wants it; the answer comes when the world has been formed again."""
        c = self._context
        missing = c.missing_nodes()
        reason = (
            (missing and f"{missing}; {c.way_back()}")
            or c.unknown_ranks(message.ranks)
            or self._left_out(message.ranks)
        )
        if reason:
            c.refuse(client, message.request, reason)
            return
        for number in sorted(set(message.ranks)):
            rank = c.world.ranks[number]
            if rank.state != "gone":
                self._lose(rank, "restarted by the user", is_wanted=True)
            self._replace(rank)
        self.mend()
        self._forming.await_next(client, message.request, GroupCreated(f"{those(message.ranks, 'is')} fresh"))

    def _left_out(self, ranks: tuple[int, ...]) -> str:
        """Why the world could not be formed with these replaced: other places are empty, too. "" if it could."""
        c = self._context
        empty = {r.rank for r in c.world.ranks.values() if r.state == "gone"} - set(ranks)
        return c.missing_ranks() if empty else ""

    def replace(self, rank: Rank) -> None:
        """Another process in the place of one that has ended unheard."""
        rank.state = "gone"
        self._replace(rank)

    def mend(self) -> None:
        """A world that failed is tried again, with all that it lacks replaced."""
        c = self._context
        if c.phase != "failed":
            return
        c.phase = "gathering"
        c.reason = ""
        for rank in list(c.world.ranks.values()):
            if rank.state == "gone":
                self._replace(rank)
        self._forming.mend_store()

    # ------------------------------------------------------------ nodes

    def node_gone(self, node: Node, reason: str) -> None:
        """A node's agent is gone, and so are its ranks. Before ranks are numbered its place is simply free again."""
        c = self._context
        c.drop_lifelines(node.agent)
        c.out.append(Forget(node.agent))
        self._questions.answer_for_node(node.agent, f"node {node.node_rank} is gone: {reason}")
        node.agent = ""
        node.is_cut_off = False
        if not c.world.ranks:
            del c.world.nodes[node.node_rank]
            return
        why = f"{node.name} is gone: {reason}"
        if c.settings.on_death == "stop":
            c.ending = f"{why}; the cluster was started to stop then"
        for number in c.world.topology.ranks_at(node.node_rank):
            rank = c.world.ranks[number]
            if rank.state != "gone":
                self._lose(rank, why)
        self._forming.abandon()
        self._forming.refuse_waiting(why)
        self._cells.end_waiting(why)
