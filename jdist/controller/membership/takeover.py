"""Takeover: how a controller that was started again takes over what the one before it left. Pure.

It knows the settings and nothing of the world. Each agent that is still there says hello with what its node holds::

    nothing known ──the first hello with a world──► every node awaited ──hello of an awaited node──► its ranks adopted
                                                      └──all are back, or their graces are over──► settled

When it is settled, every namespace is kept. If all ranks hold the last generation, the world is ready, and what runs
or is paused goes on, for clients to follow; its code, its timeout and how its other ranks ended are not known. It is
interrupted, and the world formed again, if a rank is missing, or if the earlier controller had interrupted it. A node
that comes later is adopted then; one whose place was taken meanwhile is turned away.

Ranks that were removed from the world stay removed. If it had not been formed without them yet, their agents and all
others have recorded that (``HeldGeneration.ended``), and they are removed again when it is settled. If some agents
have the next generation and some the last, the next one says who is in the world.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from jdist.controller.membership.formation import Formation
from jdist.controller.membership.rank_loss import RankLoss
from jdist.controller.membership.resizing import Resizing
from jdist.controller.model.model import Model
from jdist.controller.model.phases import transition
from jdist.controller.model.runs import NOBODY, Run
from jdist.controller.model.world import Node, Rank
from jdist.controller.runs.lifecycle import OwnRuns, RunLifecycle
from jdist.controller.runs.saving import Autosaver
from jdist.core.errors import Remedy
from jdist.core.messages.membership import (
    AgentHello,
    EndWorkers,
    FormWorld,
    HeldGeneration,
    HeldWorker,
    NodeFacts,
    Owner,
)
from jdist.core.messages.runs import CellSpec, RankDone
from jdist.core.messages.status import Notice
from jdist.core.topology import MOST_RANKS

_UNKNOWN = NodeFacts("not back yet", 0, "", "", "", 0, 0, "")
_TOLD_FOR = 60.0  # Seconds in which clients that attach are told of the takeover: they may come after the nodes.


@dataclass
class Takeover:
    """Adopts the nodes of an earlier controller. Those that have not come yet are in the world with unknown facts."""

    _model: Model
    _runs: RunLifecycle
    _own_runs: OwnRuns
    _formation: Formation
    _rank_loss: RankLoss
    _resizing: Resizing
    _autosaver: Autosaver
    has_begun: bool = False  # There was a controller before this one.
    owners: Mapping[str, Owner] = field(default_factory=dict)  # The agents that there were then.
    _is_settled: bool = True
    _setup_cells: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    _was_aborted: set[int] = field(default_factory=set)  # Runs that the earlier controller had interrupted.
    _ended: set[int] = field(default_factory=set)  # Workers that were removed since the newest generation.
    _ends: list[RankDone] = field(default_factory=list)  # Of ranks that ended before it was settled.
    _told: tuple[float, Notice] | None = None  # When clients were told of it, and what.

    @property
    def deadline(self) -> float | None:
        """When it is settled without the nodes that are not back; None once it is."""
        if self._is_settled:
            return None
        nodes = self._model.world.nodes.values()
        return max((n.awaited_until for n in nodes if n.awaited_until is not None), default=self._model.now)

    def record_hello(self, hello: AgentHello) -> None:
        """Lay out the world as the first agent that tells of one has it; take out the ranks that a newer one lacks."""
        m, world = self._model, self._model.world
        form = None if hello.held is None else hello.held.form
        if not self.has_begun or form is None:
            return
        if not world.ranks and not world.nodes and _makes_sense(form):
            world.nnodes = len(form.nproc_per_node)  # it may have got another size since its start
            for n, nproc in enumerate(form.nproc_per_node):
                world.nodes[n] = Node(n, "", _UNKNOWN, nproc, m.now, host=form.node_of[n] if form.node_of else None)
            world.number_ranks(form.workers)
            carried = {w for owner in self.owners.values() if owner.is_carried for w in owner.workers}
            for rank in world.ranks.values():
                transition(rank, "gone", "not back from an earlier controller")
                rank.was_up = True
                if rank.worker in carried:
                    world.nodes[rank.node_rank].facts = replace(_UNKNOWN, is_carried=True)
            for node in world.nodes.values():  # as long as for one that falls silent
                node.awaited_until = m.now + node.grace(m.settings)
            self._is_settled = False
            self._take_form(form)
        elif not self._is_settled and form.generation > m.generation:
            self._remove({rank.worker for rank in world.ranks.values()}.difference(form.workers))

    def _take_form(self, form: FormWorld) -> None:
        self._model.generation = form.generation
        self._formation.named = dict(form.named)
        self._formation.mesh = form.mesh
        self._ended = set()

    def find(self, agent: str, held: HeldGeneration | None) -> int | None:
        """The place of a node that comes back with workers of the world, by these; None if it begins afresh.

        An agent has only the workers that it had before, whatever it says that it holds.
        """
        world = self._model.world
        if not self.has_begun or held is None or held.form is None or not held.workers:
            return None
        known = self.owners.get(agent, Owner(()))
        own = {worker.worker for worker in held.workers}.intersection(known.workers)
        removed = None if self._is_settled else world.nnodes  # a place that does not exist
        return next((rank.node_rank for rank in world.ranks.values() if rank.worker in own), removed)

    def awaits(self, node_rank: int) -> bool:
        """Whether the node of this place has not come back yet."""
        node = self._model.world.nodes.get(node_rank)
        return node is not None and node.awaited_until is not None

    def adopt(self, node: Node, held: HeldGeneration) -> None:
        """The node has been given its old place: take its ranks as they are."""
        m = self._model
        if held.form is not None and held.form.generation > m.generation:
            self._take_form(held.form)
        if held.form is not None and held.form.generation == m.generation:
            self._ended |= set(held.ended)
        m.runs.last_number = max(m.runs.last_number, held.last_run)
        found = {worker.worker: worker for worker in held.workers}
        for number in m.world.topology.ranks_at(node.node_rank):
            rank = m.world.ranks[number]
            if rank.worker in found:
                self._take_rank(rank, found.pop(rank.worker))
            elif rank.worker not in self._ended:
                self._rank_loss.replace(rank)
        if held.autosave.options is not None and self._autosaver.options is None:
            self._autosaver.set(held.autosave.options, held.autosave.every)
        if found:
            m.send(node.agent, EndWorkers(tuple(found)))  # it has not heard that they were removed
        for run, code, workers in held.setup:
            first, known = self._setup_cells.get(code, (run, set()))
            self._setup_cells[code] = (max(first, run), known | set(workers))
        self._settle_if_complete()

    def _take_rank(self, rank: Rank, held: HeldWorker) -> None:
        m = self._model
        rank.incarnation = held.incarnation
        rank.is_fresh, rank.inherits = held.is_fresh, held.inherits
        rank.was_up = True
        rank.generation, rank.pid = held.generation, held.pid
        rank.groups, rank.listeners = list(held.groups), set(held.listeners)
        if not held.pid and not held.is_awaited:
            self._rank_loss.replace(rank)
            return
        is_held = held.generation == m.generation
        transition(rank, "starting" if not held.is_up else "held" if is_held else "up", "taken over")
        if held.run:
            run = self._join(held.run, rank.rank)
            self._was_aborted |= {held.run} if held.is_aborted else set()
            run.resumes[rank.rank] = held.resumes
            if held.paused is not None:
                run.record_pause(replace(held.paused, rank=rank.rank), m.now)
        if held.inner_run:
            self._join(held.inner_run, rank.rank).inside[rank.rank] = held.run

    def handle_rank_done(self, _agent: str, done: RankDone) -> None:
        """Until it is settled, a run seems to be over when the ranks have ended whose nodes are back already."""
        if self._is_settled:
            self._runs.record_rank_done(done)
        else:
            self._ends.append(done)

    def _join(self, number: int, rank: int) -> Run:
        """A rank is in that run: from now on its end is heard."""
        book = self._model.runs
        if number not in book.running:
            book.start(Run(number, NOBODY, CellSpec(""), ()), self._model.now)
        run = book.running[number]
        run.ranks = tuple(sorted((*run.ranks, rank)))
        run.pending.add(rank)
        self._model.records.adopt(number, rank)
        self._model.world.ranks[rank].last_run = number
        return run

    def take_place(self, node_rank: int) -> None:
        """Another node has taken the place of one that is awaited: do not wait for that any more."""
        world = self._model.world
        self._ended -= {world.ranks[r].worker for r in world.topology.ranks_at(node_rank)}
        self._settle_if_complete()

    def handle_tick(self) -> None:
        if self.deadline is not None and self._model.now >= self.deadline:
            self._settle(is_late=False)

    def _settle_if_complete(self) -> None:
        world = self._model.world
        is_awaited = any(self.awaits(r.node_rank) and r.worker not in self._ended for r in world.ranks.values())
        if self._is_settled or not is_awaited:
            self._settle(is_late=self._is_settled)

    def _settle(self, *, is_late: bool) -> None:
        m = self._model
        self._is_settled = True
        cells = sorted((run, code, workers) for code, (run, workers) in self._setup_cells.items())
        self._own_runs.restore((code, tuple(sorted(workers))) for _, code, workers in cells)
        has_shrunk = self._remove(self._ended)
        for rank in list(m.world.ranks.values()):
            if rank.worker in self._ended and rank.phase == "gone":
                self._rank_loss.replace(rank)  # it could not be removed
        self._ended = set()
        ends, self._ends = self._ends, []
        for done in ends:
            self._runs.record_rank_done(done)
        is_held = all(r.phase == "held" and r.generation == m.generation for r in m.world.ranks.values())
        is_whole = not (is_late or has_shrunk or m.phase == "failed") and is_held
        m.is_dirty = not is_whole
        for run in [run for run in m.runs.running.values() if run.client == NOBODY]:
            if not is_whole or run.number in self._was_aborted:
                self._runs.abort(run, "interrupted")
            else:  # a rank that is blocked has reported so to the earlier controller
                run.is_stalled = True
                run.poll_no_later_than(m.now)
        if not m.is_dirty:
            transition(m, "ready", "taken over as it is")
        back = sum(n.is_here for n in m.world.nodes.values())
        nodes = f"{back} of {m.world.nnodes} nodes are back"
        on = [str(run.number) for run in m.runs.running.values() if not run.abort_reason]
        goes_on = f"; run{'s' * (len(on) > 1)} {', '.join(on)} {'go' if len(on) > 1 else 'goes'} on" if on else ""
        remedies = (Remedy("attach", "follow what runs", name=m.settings.name),) if on else ()
        notice = Notice(
            f"the cluster's controller died and was started again: {nodes}, variables are kept{goes_on}",
            remedies=remedies,
        )
        self._told = m.now, notice
        m.broadcast(notice)
        if missing := m.missing_nodes():
            self._runs.end_waiting(missing)

    def tell(self, client: str) -> None:
        """A client has attached: tell it of a takeover that was settled a moment before."""
        if self._told is not None and self._model.now < self._told[0] + _TOLD_FOR:
            self._model.send(client, self._told[1])

    def _remove(self, workers: set[int]) -> bool:
        """Remove ranks that the earlier controller had removed already; whether any was."""
        m = self._model
        gone = tuple(rank.rank for rank in m.world.ranks.values() if rank.worker in workers)
        if not gone or len(gone) == len(m.world.ranks) or m.runs.running:
            return False
        m.broadcast(Notice(str(self._resizing.remove(gone))))
        return True


def _makes_sense(form: FormWorld) -> bool:
    """Whether there can be a world of that shape: an agent says so, and the whole world would be laid out by it."""
    nodes, counts = form.node_of, form.nproc_per_node
    is_counted = bool(counts) and min(counts) >= 0 and len(set(form.workers)) == sum(counts) <= MOST_RANKS
    return is_counted and len(nodes) in (0, len(counts)) and form.generation > 0
