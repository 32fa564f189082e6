"""Resizing: the world grows by a node, or shrinks by ranks, between two cells. Pure.

A node's way in, and a rank's way out; nothing else changes the world's size::

    AddNode ──► a place is open ──an agent comes──► it waits ──no run──► its ranks are starting ──all up──► formed
                       └──no agent in time: refused     └──the place is closed: rejected

    RemoveRanks ──no setup cell is being replayed (any more)──► the others are renumbered ──► formed
          └──a user's cell runs or waits: refused

Ranks stay dense and node-major, as torchrun counts them. A node that is added is the last, and its ranks have the
highest numbers, so that all others keep theirs. When ranks are removed the others close up in their order; a node that
has no rank left is released: its agent ends, and the nodes behind it close up as well.

What keeps a rank's number follows the new one at once: the world, groups, setup cells, queries that wait. Agents know
their workers by ids that stay. A process learns its rank with the next generation (FormWorld), and everything that
torch knows of ranks is made again with that. Until then every agent remembers which workers were removed, for the case
that this controller dies (membership/takeover).

Removing is also how a cluster goes on without a node that is gone.
"""

from dataclasses import dataclass, field

from jdist.controller.membership.formation import Formation
from jdist.controller.membership.rank_loss import RankLoss
from jdist.controller.model.model import Model
from jdist.controller.model.world import Node, Numbering
from jdist.controller.queries import Queries
from jdist.controller.runs.lifecycle import OwnRuns
from jdist.controller.runs.rank_polling import RankPoller
from jdist.core.messages.membership import (
    AbortAddNode,
    AddNode,
    AgentHello,
    EndWorkers,
    PlaceOpened,
    RemoveRanks,
    Resized,
    Shutdown,
)
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.status import Notice
from jdist.core.ranks import RankSet
from jdist.core.topology import MOST_NODES, MOST_ON_NODE


@dataclass
class _Opening:
    """A place for one more node."""

    client: str
    request: str
    node_rank: int
    nproc: int  # Ranks that were asked for; 0: as the agent says, or as many as the last node has.
    deadline: float
    seconds: float


@dataclass
class _Waiting:
    """An agent that has come for the open place."""

    agent: str
    hello: AgentHello
    last_heard: float


@dataclass
class Resizing:
    """Gives the world another size."""

    _model: Model
    _queries: Queries
    _own_runs: OwnRuns
    _poller: RankPoller
    _formation: Formation
    _rank_loss: RankLoss
    _opening: _Opening | None = None
    _waiting: _Waiting | None = None
    _removals: list[tuple[str, RemoveRanks]] = field(default_factory=list)  # They wait for the controller's own cells.

    def _is_quiet(self) -> bool:
        """Whether ranks may be counted anew: no cell is running, and no poll of ranks is under way."""
        return not self._model.runs.running and self._poller.next_wakeup() is None

    def handle_add_node(self, client: str, message: AddNode) -> None:
        m, opening = self._model, self._opening
        reason = m.unformed()
        if opening is not None and opening.client != client and m.phase != "failed":
            reason = f"another client is adding a node; wait until it has, or for {opening.deadline - m.now:.0f} s"
        reason = reason or self._fixed() or self._busy("add a node")
        if reason:
            m.refuse(client, message.request, reason)
            return
        if message.nproc > MOST_ON_NODE or m.world.nnodes >= MOST_NODES:
            m.refuse(client, message.request, f"at most {MOST_ON_NODE:,} ranks on a node, and {MOST_NODES:,} nodes")
            return
        place, until = m.world.nnodes, m.now + message.timeout
        self._opening = _Opening(client, message.request, place, message.nproc, until, message.timeout)
        m.send(client, RankReply(message.request, -1, PlaceOpened(place)))

    def handle_abort(self, client: str, message: AbortAddNode) -> None:
        """Close the place that the client has opened; an agent that waits for it is rejected."""
        opening = self._opening
        if opening is not None and (opening.client, opening.request) == (client, message.request):
            self._opening = None

    def offer(self, agent: str, hello: AgentHello, refusal: str) -> bool:
        """Have the agent wait for the open place; with a refusal, close that. False if no place is open for it."""
        m, opening = self._model, self._opening
        if opening is None or hello.node_rank not in (-1, opening.node_rank):
            return False
        if refusal:
            self._opening = None
            m.refuse(opening.client, opening.request, f"the new node was refused: {refusal}")
            m.reject(agent, hello.facts.hostname, refusal)
        else:
            self._waiting = _Waiting(agent, hello, m.now)
        return True

    def is_waiting(self, agent: str) -> bool:
        """Whether it is the agent that waits to be let in; it lives."""
        if self._waiting is None or self._waiting.agent != agent:
            return False
        self._waiting.last_heard = self._model.now
        return True

    def admit_waiting(self) -> Node | None:
        """Take the waiting agent's node into the world, as soon as nothing goes on in which ranks are counted."""
        m, waiting, opening = self._model, self._waiting, self._opening
        if waiting is None:
            return None
        is_alive = m.now - waiting.last_heard < m.settings.beat_timeout
        if opening is not None and is_alive and not self._is_quiet():
            return None
        self._waiting = None
        if opening is None:
            why = "its place was closed while it waited for a cell to end"
            m.reject(waiting.agent, waiting.hello.facts.hostname, why)
        elif not is_alive:
            m.forget(waiting.agent)  # it has ended; another may come
        else:
            self._opening = None
            return self._admit(opening, waiting)
        return None

    def _admit(self, opening: _Opening, waiting: _Waiting) -> Node:
        m = self._model
        place = m.world.nnodes
        nproc = opening.nproc or waiting.hello.nproc or m.world.nodes[place - 1].nproc
        node = Node(place, waiting.agent, waiting.hello.facts, nproc, m.now)
        added = m.world.grow(node)
        self._own_runs.grow(added)
        m.is_dirty = True
        size, unchanged = len(m.world.ranks), {r: r for r in range(added[0])}
        notes = (f"{node.name} is new, with {_name(added)}; the world has {size}", *self._formation.drop_mesh())
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
        if self._opening is not None and self._opening.client == client:
            self._opening = None
        self._removals = [(who, message) for who, message in self._removals if who != client]

    def handle_remove_ranks(self, client: str, message: RemoveRanks) -> None:
        """Take ranks out of the world; the answer comes when the others have formed it again."""
        if self._removals:  # It renumbers the ranks, and this request counts them as they were before.
            reason = "a removal of ranks is waiting and will renumber the others; remove ranks after it"
            self._model.refuse(client, message.request, reason)
        else:
            self._removals.append((client, message))

    def remove_pending(self) -> None:
        """Remove what is to be removed, unless the controller's own cells are still running."""
        while self._removals:
            client, message = self._removals[0]
            gone = tuple(sorted(set(message.ranks)))
            reason = self._refusal_to_remove(gone)
            if not reason and not self._is_quiet():
                return
            del self._removals[0]
            if reason:
                self._model.refuse(client, message.request, reason)
            else:
                self._announce(client, message.request, self.remove(gone))

    def remove(self, gone: tuple[int, ...]) -> Resized:
        """Take ranks out of the world while none runs a cell; what has changed."""
        m = self._model
        for rank in gone:
            self._queries.answer_for(rank, f"{m.world.where(rank)} has been removed")
        had_store = m.world.nodes[0]
        workers = tuple(m.world.ranks[rank].worker for rank in gone)
        self._formation.abandon("ranks are removed")
        numbering, released = m.world.shrink(gone)
        self._own_runs.handle_removal(numbering)
        size = len(m.world.ranks)
        notes = (*_describe(gone, numbering, released, size), *self._formation.renumber(numbering))
        for node in released:
            m.send(node.agent, Shutdown(m.settings.end_grace))
            self._queries.answer_for_node(node.agent, f"{node.name} has been released")
        for node_rank in m.world.nodes:
            m.send_to_node(node_rank, EndWorkers(workers))
        if m.world.nodes[0] is not had_store:
            self._formation.start_store()
        self._rank_loss.mend()
        return Resized(size, numbering.ranks, (), notes)

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
        reason = self._fixed() or self._busy("remove ranks")
        staying = [r for r in m.world.ranks.values() if r.rank not in gone]
        ranks = RankSet(r.rank for r in staying if not m.world.nodes[r.node_rank].is_here)
        if ranks and not reason:
            return f"{m.missing_nodes()}: its ranks {ranks} cannot stay; remove them as well"
        return reason or (m.missing_ranks() if any(r.phase == "gone" for r in staying) else "")

    def _fixed(self) -> str:
        is_fixed = self._formation.backend == "mpi"
        return "mpirun has fixed the number of ranks (--backend mpi); start a cluster of another size" * is_fixed

    def _busy(self, doing: str) -> str:
        """Why it is not between two of the users' cells; "" if it is."""
        runs = self._model.runs
        run = next((r for r in runs.running.values() if not r.is_own), None)
        if run is not None:
            if run.paused:
                where = _name(tuple(sorted(run.paused)))
                return f"run {run.number} is paused on {where}: let it finish or interrupt it, then {doing}"
            where = _name(run.ranks)
            return f"run {run.number} is running on {where}: wait for its end or interrupt it, then {doing}"
        waiting = next((r for r in runs.queued if not r.is_own), None)
        return "" if waiting is None else f"run {waiting.number} waits for {_name(waiting.ranks)}; {doing} after it"

    def _announce(self, client: str, request: str, resized: Resized) -> None:
        """Answer the client once the world is formed; notify the others now, since their next cell counts anew."""
        self._formation.await_next(client, request, resized)
        for other in self._model.clients:
            if other != client:
                self._model.send(other, Notice(str(resized)))


def _describe(gone: tuple[int, ...], numbering: Numbering, released: list[Node], size: int) -> tuple[str, ...]:
    """One line for each change."""
    lines = [f"{_name(gone)} {'is' if len(gone) == 1 else 'are'} removed; the world has {size}"]
    lines += [f"{n.name} has no rank left and is {'released' if n.is_here else 'given up'}" for n in released]
    lines += [f"rank {old} is now rank {new}" for old, new in numbering.ranks.items() if old != new]
    lines += [f"node {old} is now node {new}" for old, new in numbering.nodes.items() if old != new]
    return tuple(lines)


def _name(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {RankSet(ranks)}"
