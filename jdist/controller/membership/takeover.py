"""Takeover: how a controller that was started again takes over what the one before it left. Pure.

It knows the settings and nothing of the world. Each agent that is still there says hello with what its node holds::

    nothing known ──the first hello with a world──► every node awaited ──hello of an awaited node──► its ranks adopted
                                                      └──all are back, or the node grace is over──► settled

When it is settled, what still runs is interrupted (its client is gone) and every namespace is kept. The
world is formed again only if a cell was running, or a rank does not hold the last generation. A node that comes later
is adopted then; one whose place was taken meanwhile is turned away.
"""

from jdist.controller.membership.formation import Formation
from jdist.controller.membership.rank_loss import RankLoss
from jdist.controller.model.model import Model
from jdist.controller.model.phases import transition
from jdist.controller.model.runs import Run
from jdist.controller.model.world import Node, Rank
from jdist.controller.runs.lifecycle import RunLifecycle
from jdist.controller.runs.own_runs import OwnRuns
from jdist.core.messages.groups import FormWorld
from jdist.core.messages.membership import AgentHello, HeldGeneration, HeldWorker, NodeFacts
from jdist.core.messages.status import Notice

_UNKNOWN = NodeFacts("not back yet", 0, "", "", "", 0, 0, "")
_MOST_RANKS = 1 << 16
_NOBODY = "-"  # The client of a run whose client's link ended with the controller before.


class Takeover:
    """Knows which nodes are awaited."""

    def __init__(self, model: Model, runs: RunLifecycle, own_runs: OwnRuns, formation: Formation, rank_loss: RankLoss):
        self._model = model
        self._runs = runs
        self._own_runs = own_runs
        self._formation = formation
        self._rank_loss = rank_loss
        self._has_begun = False
        self._awaited: set[int] = set()
        self._setup_cells: dict[str, tuple[int, set[int]]] = {}
        self.deadline: float | None = None

    def begin(self) -> None:
        """There was a controller before this one."""
        self._has_begun = True

    def record_hello(self, hello: AgentHello) -> None:
        """The first agent that tells of a formed world says what there is to wait for."""
        m = self._model
        form = None if hello.held is None else hello.held.form
        if not self._has_begun or form is None or m.world.ranks or m.world.nodes or not _makes_sense(form):
            return
        m.world.nnodes = len(form.nproc_per_node)  # it may have got another size since its start
        for n, nproc in enumerate(form.nproc_per_node):
            m.world.nodes[n] = Node(n, "", _UNKNOWN, nproc, m.now)
            m.world.nodes[n].host = form.node_of[n] if form.node_of else None
        m.world.number_ranks(form.workers)
        for rank in m.world.ranks.values():
            transition(rank, "gone", "not back from an earlier controller")
            rank.was_up = True
        self._awaited = set(m.world.nodes)
        self.deadline = m.now + m.settings.node_grace
        self._take_form(form)

    def _take_form(self, form: FormWorld) -> None:
        self._model.generation = max(self._model.generation, form.generation)
        self._formation.named = dict(form.named)
        self._formation.mesh = form.mesh

    def awaits(self, hello: AgentHello) -> bool:
        """Whether the agent's node is to be taken over with its ranks."""
        form = None if hello.held is None else hello.held.form
        if form is None or hello.node_rank not in self._awaited:
            return False  # and if it has not heard of the world's size, its ranks are unknown
        return form.nproc_per_node == self._model.world.topology.nproc_per_node

    def adopt(self, node: Node, held: HeldGeneration) -> None:
        """The node has been given its old place: take its ranks as they are."""
        m = self._model
        self._awaited.discard(node.node_rank)
        if held.form is not None and held.form.generation >= m.generation:
            self._take_form(held.form)
        m.runs.last_number = max(m.runs.last_number, held.last_run)
        found = {worker.worker: worker for worker in held.workers}
        for number in m.world.topology.ranks_at(node.node_rank):
            rank = m.world.ranks[number]
            if rank.worker in found:
                self._take_rank(rank, found[rank.worker])
            else:  # it was to be removed, and the last controller died before the others were formed without it
                self._rank_loss.replace(rank)
        for run, code, workers in held.setup:
            first, known = self._setup_cells.get(code, (run, set()))
            self._setup_cells[code] = (max(first, run), known | set(workers))
        self._settle_if_complete()

    def take_place(self, node_rank: int) -> None:
        """Stop waiting for the node of this place, which another node has taken."""
        if node_rank in self._awaited:
            self._awaited.discard(node_rank)
            self._settle_if_complete()

    def _settle_if_complete(self) -> None:
        if self.deadline is None or not self._awaited:
            self._settle(is_late=self.deadline is None)

    def _take_rank(self, rank: Rank, held: HeldWorker) -> None:
        m = self._model
        rank.incarnation = held.incarnation
        rank.is_fresh = held.incarnation > 0
        rank.was_up = True
        rank.generation, rank.pid = held.generation, held.pid
        rank.groups, rank.listeners = list(held.groups), set(held.listeners)
        if not held.pid:
            self._rank_loss.replace(rank)
            return
        is_held = held.generation == m.generation
        transition(rank, "starting" if not held.is_up else "held" if is_held else "up", "taken over")
        if held.run:
            self._take_run(held.run, rank.rank)

    def _take_run(self, number: int, rank: int) -> None:
        """A rank still runs a cell: from now on its end is heard."""
        run = self._model.runs.running.get(number)
        if run is None:
            self._model.runs.start(Run(number, _NOBODY, "", (rank,)), self._model.now)
        else:
            run.ranks = (*run.ranks, rank)
            run.pending.add(rank)

    def handle_tick(self) -> None:
        """Go on without the nodes that are not back."""
        if self.deadline is not None and self._model.now >= self.deadline:
            self._settle(is_late=False)

    def _settle(self, *, is_late: bool) -> None:
        m = self._model
        self.deadline = None
        cells = sorted((run, code, workers) for code, (run, workers) in self._setup_cells.items())
        self._own_runs.restore((code, tuple(sorted(workers))) for _, code, workers in cells)
        ranks = m.world.ranks.values()
        m.is_dirty = (
            is_late or m.phase == "failed" or any(r.phase != "held" or r.generation != m.generation for r in ranks)
        )
        for run in list(m.runs.running.values()):
            if run.client == _NOBODY:
                self._runs.abort(run, "interrupted")
        if not m.is_dirty:
            transition(m, "ready", "taken over as it is")
        back = sum(n.is_here for n in m.world.nodes.values())
        m.broadcast(
            Notice(f"the controller was started again: {back} of {m.world.nnodes} nodes are back, names are kept")
        )


def _makes_sense(form: FormWorld) -> bool:
    """Whether there can be a world of that shape: an agent says so, and the whole world would be laid out by it."""
    nodes, counts = form.node_of, form.nproc_per_node
    is_counted = bool(counts) and min(counts) >= 0 and len(set(form.workers)) == sum(counts) <= _MOST_RANKS
    return is_counted and len(nodes) in (0, len(counts))
