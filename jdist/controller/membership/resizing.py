"""Resizing: the world grows by a node, or shrinks by ranks, between two cells. Pure.

A node's way in, and a rank's way out; nothing else changes the world's size::

    AddNode ──► a place is open ──an agent comes, no run──► its ranks are starting ──all up──► formed (Resized)
                       └──no agent in time: refused

    RemoveRanks ──no setup cell is being replayed (any more)──► the others are renumbered ──► formed (Resized)
          └──a user's cell runs or waits: refused

Ranks stay dense and node-major, as torchrun counts them. A node that is added is the last, and its ranks have the
highest numbers, so that all others keep theirs. When ranks are removed the others close up in their order; a node that
has no rank left is released: its agent ends, and the nodes behind it close up as well.

What keeps a rank's number follows the new one at once: the world, groups, setup cells, queries that wait. Agents know
their workers by ids that stay. A process learns its rank with the next generation (FormWorld), and everything that
torch knows of ranks is made again with that.

Removing is also how a cluster goes on without a node that is gone.
"""

from dataclasses import dataclass

from jdist.controller.membership.formation import Formation
from jdist.controller.membership.rank_loss import RankLoss
from jdist.controller.model.model import Model
from jdist.controller.model.world import Node, Numbering
from jdist.controller.queries import Queries
from jdist.controller.runs.own_runs import OwnRuns
from jdist.controller.runs.rank_polling import RankPoller
from jdist.core.messages.membership import AddNode, AgentHello, EndWorkers, PlaceOpened, RemoveRanks, Resized, Shutdown
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.status import Notice
from jdist.core.ranks import RankSet


@dataclass
class _Opening:
    """A place for one more node."""

    client: str
    request: str
    node_rank: int
    nproc: int  # Ranks that were asked for; 0: as the agent says, or as many as the last node has.
    deadline: float
    seconds: float


class Resizing:
    """Gives the world another size."""

    def __init__(
        self,
        model: Model,
        queries: Queries,
        own_runs: OwnRuns,
        poller: RankPoller,
        formation: Formation,
        rank_loss: RankLoss,
    ):
        self._model = model
        self._queries = queries
        self._own_runs = own_runs
        self._poller = poller
        self._formation = formation
        self._rank_loss = rank_loss
        self._opening: _Opening | None = None
        self._removals: list[tuple[str, RemoveRanks]] = []  # Those that wait for the controller's own cells.

    @property
    def is_quiet(self) -> bool:
        """Whether ranks may be counted anew: no cell is running, and no poll of ranks is under way."""
        return not self._model.runs.running and self._poller.next_wakeup() is None

    # ------------------------------------------------------------ a node more

    def handle_add_node(self, client: str, message: AddNode) -> None:
        """Open a place for a node, for a while."""
        m = self._model
        reason = self._refusal_to_add(client)
        if reason:
            m.refuse(client, message.request, reason)
            return
        place = m.world.nnodes
        until = m.now + message.timeout
        self._opening = _Opening(client, message.request, place, message.nproc, until, message.timeout)
        m.send(client, RankReply(message.request, -1, PlaceOpened(place)))

    def _refusal_to_add(self, client: str) -> str:
        m = self._model
        if m.phase == "failed":
            return f"the world is not formed: {m.reason}"
        if self._opening is not None and self._opening.client != client:
            left = self._opening.deadline - m.now
            return f"another client is adding a node; wait until it has, or for {left:.0f} s"
        unformed = m.missing_nodes() or m.missing_ranks() or ("" if m.world.ranks else m.unknown_ranks(()))
        return unformed or self._fixed() or self._busy("add a node")

    def awaits(self, hello: AgentHello) -> bool:
        """Whether a place is open for this agent."""
        return self._opening is not None and hello.node_rank in (-1, self._opening.node_rank)

    def turn_away(self, reason: str) -> None:
        """The agent for which a place was open cannot have it."""
        opening, self._opening = self._opening, None
        if opening is not None:
            self._model.refuse(opening.client, opening.request, f"the new node was refused: {reason}")

    def admit(self, agent: str, hello: AgentHello) -> Node | None:
        """Take the agent's node into the world, whose next generation has its ranks; None if no place is open."""
        m = self._model
        opening, self._opening = self._opening, None
        if opening is None:
            return None
        place = m.world.nnodes
        nproc = opening.nproc or hello.nproc or m.world.nodes[place - 1].nproc
        node = Node(place, agent, hello.facts, nproc, m.now)
        added = m.world.grow(node)
        self._own_runs.grow(added)
        where = node.name
        size = len(m.world.ranks)
        notes = (f"{where} is new, with {_name(added)}; the world has {size}", *self._formation.drop_mesh())
        m.is_dirty = True
        unchanged = {r: r for r in range(added[0])}
        self._announce(opening.client, opening.request, Resized(size, unchanged, added, notes))
        return node

    @property
    def deadline(self) -> float | None:
        """When the open place is closed."""
        return None if self._opening is None else self._opening.deadline

    def handle_tick(self) -> None:
        """Close a place for which no agent came in time."""
        opening = self._opening
        if opening is not None and self._model.now >= opening.deadline:
            self._opening = None
            why = f"no agent came for node {opening.node_rank} within {opening.seconds:.0f} s"
            run = next(iter(self._model.runs.running), None)
            why += "" if run is None else f" between two cells: run {run} is running"
            self._model.refuse(opening.client, opening.request, why)

    def forget(self, client: str) -> None:
        """Drop the requests of a client that is gone."""
        if self._opening is not None and self._opening.client == client:
            self._opening = None
        self._removals = [(who, message) for who, message in self._removals if who != client]

    # ------------------------------------------------------------ ranks less

    def handle_remove_ranks(self, client: str, message: RemoveRanks) -> None:
        """Take ranks out of the world; the answer comes when the others have formed it again."""
        self._removals.append((client, message))

    def remove_pending(self) -> None:
        """Remove what is to be removed, unless the controller's own cells are still running."""
        while self._removals:
            client, message = self._removals[0]
            gone = tuple(sorted(set(message.ranks)))
            reason = self._refusal_to_remove(gone)
            if not reason and not self.is_quiet:
                return
            del self._removals[0]
            if reason:
                self._model.refuse(client, message.request, reason)
            else:
                self._remove(client, message.request, gone)

    def _remove(self, client: str, request: str, gone: tuple[int, ...]) -> None:
        m = self._model
        for rank in gone:
            self._queries.answer_for(rank, f"{m.world.where(rank)} has been removed")
        had_store = m.world.nodes[0]
        workers = [(m.world.nodes[n], own) for n, own in m.world.workers_by_node(gone).items()]
        self._formation.abandon("ranks are removed")
        numbering, released = m.world.shrink(gone)
        self._own_runs.handle_removal(numbering)
        notes = (*_describe(gone, numbering, released, len(m.world.ranks)), *self._formation.renumber(numbering))
        for node, own in workers:
            m.send(node.agent, Shutdown() if node in released else EndWorkers(own))
            if node in released:
                self._queries.answer_for_node(node.agent, f"{node.name} has been released")
        if m.world.nodes[0] is not had_store:
            self._formation.start_store()
        self._rank_loss.mend()
        resized = Resized(len(m.world.ranks), numbering.ranks, (), (*notes, *self._formation.drop_mesh()))
        self._announce(client, request, resized)

    def _refusal_to_remove(self, gone: tuple[int, ...]) -> str:
        m = self._model
        unknown = m.unknown_ranks(gone)
        if unknown:
            return unknown
        if len(gone) == len(m.world.ranks):
            return "that would leave no rank; stop the cluster instead"
        moving = self._queries.moving()
        if moving:
            return f"a value is being moved from or to {_name(moving)}; remove ranks when it is there"
        return self._fixed() or self._busy("remove ranks") or self._left_behind(gone)

    def _left_behind(self, gone: tuple[int, ...]) -> str:
        """Why the ranks that stay could not form the world; "" if they could."""
        m = self._model
        staying = [r for r in m.world.ranks.values() if r.rank not in gone]
        nodes = sorted({r.node_rank for r in staying if not m.world.nodes[r.node_rank].is_here})
        if nodes:
            ranks = RankSet(r.rank for r in staying if r.node_rank in nodes)
            return f"{m.missing_nodes()}: its ranks {ranks} cannot stay; remove them as well"
        empty = [r.rank for r in staying if r.phase == "gone"]
        return m.missing_ranks() if empty and m.phase != "failed" else ""

    # ------------------------------------------------------------ what both need

    def _fixed(self) -> str:
        is_fixed = self._formation.backend == "mpi"
        return "mpirun has fixed the number of ranks (--backend mpi); start a cluster of another size" * is_fixed

    def _busy(self, doing: str) -> str:
        """Why it is not between two of the users' cells; "" if it is."""
        runs = self._model.runs
        run = next((r for r in runs.running.values() if not r.is_own), None)
        if run is not None:
            where = _name(run.ranks)
            return f"run {run.number} is running on {where}: wait for its end or interrupt it, then {doing}"
        waiting = next((r for r in runs.queued if not r.is_own), None)
        return "" if waiting is None else f"run {waiting.number} waits for {_name(waiting.ranks)}; {doing} after it"

    def _announce(self, client: str, request: str, resized: Resized) -> None:
        """Answer the client once the world is formed; notify the others now, since their next cell counts anew."""
        m = self._model
        self._formation.await_next(client, request, resized)
        for other in m.clients:
            if other != client:
                m.send(other, Notice(str(resized)))


def _describe(gone: tuple[int, ...], numbering: Numbering, released: list[Node], size: int) -> tuple[str, ...]:
    """One line for each change."""
    lines = [f"{_name(gone)} {'is' if len(gone) == 1 else 'are'} removed; the world has {size}"]
    for node in released:
        was = node.name
        lines.append(f"{was} has no rank left and is {'released' if node.is_here else 'given up'}")
    lines += [f"rank {old} is now rank {new}" for old, new in numbering.ranks.items() if old != new]
    lines += [f"node {old} is now node {new}" for old, new in numbering.nodes.items() if old != new]
    return tuple(lines)


def _name(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {RankSet(ranks)}"
