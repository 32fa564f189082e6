"""World: the nodes and ranks, what is known of each, and the ids by which agents know their workers. Pure.

A rank's worker has an id for life, by which its agent and this controller name it: what an agent sends about a worker
stays right when ranks are removed and the others close up. :meth:`World.from_node` puts the present ranks in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct, structs

from jdist.controller.model.phases import RANK, HasPhase, Lifecycle, RankPhase, transition
from jdist.core.messages.base import Message
from jdist.core.messages.membership import EndOverdue, GroupSpec, LauncherTask, NodeFacts, Owner
from jdist.core.messages.nodes import NodeResources
from jdist.core.messages.observation import Observation
from jdist.core.messages.protocol import NodeReply
from jdist.core.messages.runs import MetricPoints, MetricsLogged, Output, OutputItem, Tail
from jdist.core.settings import Settings
from jdist.core.topology import Topology


@dataclass
class Node:
    """A node that joined. ``agent`` is its socket identity, "" once it is gone."""

    node_rank: int
    agent: str
    facts: NodeFacts
    nproc: int
    last_heard: float
    is_unreachable: bool = False  # It was silent for longer than the beat timeout, not yet for its grace.
    back_at: float | None = None  # When it was heard again after that.
    awaited_until: float | None = None  # Until when a restarted controller waits for it to rejoin.
    incarnation: int = 0  # Of its first workers: more than one when it has some that are void.
    task: LauncherTask | None = None  # Where the place is a launcher's task, and one rank.
    host: int | None = None  # Which of the tasks' hosts it is on, once all are here.

    @property
    def is_task(self) -> bool:
        return self.task is not None or self.host is not None

    @property
    def name(self) -> str:
        what = f"the task of rank {self.node_rank}" if self.is_task else f"node {self.node_rank}"
        return f"{what} ({self.facts.hostname})"

    def grace(self, settings: Settings) -> float:
        """Seconds without a heartbeat until it is dropped."""
        return settings.carried_grace if self.facts.is_carried else settings.node_grace

    @property
    def has_gpus(self) -> bool:
        """One for each of its ranks."""
        return self.facts.gpus >= self.nproc if self.task is None else self.task.gpu >= 0

    @property
    def is_here(self) -> bool:
        return bool(self.agent)

    def was_in_reach(self, since: float) -> bool:
        """Whether it has been in reach all the time from then on, as far as is known."""
        return not self.is_unreachable and (self.back_at is None or self.back_at <= since)


@dataclass
class Rank(HasPhase[RankPhase]):
    """One rank: *starting*, *up* (its kernel answers), *held* (it holds the generation) or *gone* (no process)."""

    rank: int
    node_rank: int
    worker: int = -1  # The id of its worker.
    pid: int = 0
    incarnation: int = 0
    generation: int = 0
    attempts: int = 0  # Processes started for this rank since one last joined the world.
    is_fresh: bool = False
    needs_setup: bool = False
    wants_reform: bool = False  # It has functions that are to be called once the world has been formed again.
    was_up: bool = False
    last_line: str = ""
    inherits: bool = False  # Its process takes over the names of the one before, once it is in the world.
    is_saving: bool = False  # Its process, which is about to end, saves its names, or is asked to.
    is_expected_to_inherit: bool = False  # The process before it was saving its names when it was replaced.
    observed_last: Observation | None = None  # What the process was doing when it failed, if it could say so.
    death: str = ""  # Why the last process in its place ended, and when.
    died_at: float = 0.0
    last_run: int = 0  # The number of the run that it began last.
    groups: list[GroupSpec] = field(default_factory=list)
    listeners: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.lifecycle = Lifecycle(f"rank {self.rank}", "starting", RANK)

    @property
    def has_process(self) -> bool:
        return self.phase in ("up", "held")

    def replaced(self, incarnation: int) -> Rank:
        """The rank with a fresh process to come; its names are lost if it had any."""
        fresh = Rank(self.rank, self.node_rank, self.worker, incarnation=incarnation, last_run=self.last_run)
        fresh.is_fresh = fresh.needs_setup = self.was_up or self.is_fresh
        fresh.death, fresh.died_at = self.death, self.died_at
        fresh.is_expected_to_inherit = self.is_saving
        fresh.attempts = 1 + (self.attempts if self.generation == 0 else 0)
        fresh.lifecycle = self.lifecycle
        transition(fresh, "starting", f"incarnation {incarnation}")
        return fresh


class Numbering(Struct, frozen=True):
    """``ranks`` is ``{old: new}`` of every rank that lives on, ``nodes`` the same of the nodes that keep some."""

    ranks: dict[int, int]
    nodes: dict[int, int]

    @classmethod
    def without(cls, gone: Iterable[int], node_of: dict[int, int]) -> Numbering:
        """The other ranks, and the nodes that keep some, close up in their order; ``node_of`` is ``{rank: node}``."""
        kept = sorted(node_of.keys() - set(gone))
        nodes = sorted({node_of[rank] for rank in kept})
        return cls({old: new for new, old in enumerate(kept)}, {old: new for new, old in enumerate(nodes)})

    def kept(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The new numbers of those of ``ranks`` that live on, in their order."""
        return tuple(self.ranks[r] for r in ranks if r in self.ranks)

    def group(self, spec: GroupSpec) -> GroupSpec:
        """A cell's group in the new numbers; gone if it has lost a member. Of a split, the whole parts are left."""
        if spec.is_gone:
            return spec
        if spec.splits:
            whole = tuple(self.kept(part) for part in spec.splits if self.ranks.keys() >= set(part))
            return structs.replace(spec, splits=whole) if whole else GroupSpec((), name=spec.name, is_gone=True)
        if not self.ranks.keys() >= set(spec.ranks):
            return GroupSpec((), spec.backend, spec.name, is_gone=True)
        return structs.replace(spec, ranks=self.kept(spec.ranks))


@dataclass
class World:
    """Nodes by node rank, and ranks by rank; ranks are numbered once every node has joined."""

    nnodes: int
    nodes: dict[int, Node] = field(default_factory=dict)  # Places (core/topology) if the ranks are a launcher's tasks.
    ranks: dict[int, Rank] = field(default_factory=dict)
    _rank_of: dict[int, int] = field(default_factory=dict)  # By worker id; empty when it has to be made again.
    _node_of: dict[str, Node] = field(default_factory=dict)  # By agent; what is there may be out of date.

    @property
    def is_by_task(self) -> bool:
        return any(n.is_task for n in self.nodes.values())

    @property
    def is_complete(self) -> bool:
        return len(self.nodes) == self.nnodes and all(n.is_here for n in self.nodes.values())

    @property
    def topology(self) -> Topology:
        """Of the nodes that joined; a node that did not counts no rank."""
        nodes = [self.nodes.get(n) for n in range(self.nnodes)]
        hosts = [node.host for node in nodes if node is not None and node.host is not None]
        known = sorted(set(hosts))
        return Topology(
            tuple(0 if node is None else node.nproc for node in nodes),
            tuple("" if node is None else node.facts.hostname for node in nodes),
            tuple(known.index(host) for host in hosts),
        )

    def rank_of(self, node: Node, worker: int) -> Rank | None:
        """The rank whose worker has that id on the node; None for a worker that has been removed."""
        if not self._rank_of:
            self._rank_of = {rank.worker: rank.rank for rank in self.ranks.values()}
        rank = self.ranks.get(self._rank_of.get(worker, -1))
        return rank if rank is not None and rank.node_rank == node.node_rank else None

    def from_node(self, node: Node, message: Message) -> Message | None:
        """What an agent sent, with ranks in place of worker ids; None if it is not about workers that the node has."""
        if isinstance(message, EndOverdue):  # its rank may have been removed
            return message
        if isinstance(message, Output):
            items = tuple(filter(None, (self._item_from(node, item) for item in message.items)))
            return structs.replace(message, items=items)
        if isinstance(message, MetricsLogged):
            points = tuple(filter(None, (self._points_from(node, points) for points in message.points)))
            return MetricsLogged(message.run, points) if points else None
        if isinstance(message, NodeReply) and isinstance(message.body, NodeResources):
            return structs.replace(message, body=self._resources_from(node, message.body))
        worker = getattr(message, "worker", None)
        if worker is not None:
            return message if self.rank_of(node, worker) is not None else None
        worker = getattr(message, "rank", None)
        if worker is None:
            return message
        rank = self.rank_of(node, worker)
        return None if rank is None else structs.replace(message, rank=rank.rank)

    def _item_from(self, node: Node, item: OutputItem) -> OutputItem | None:
        if isinstance(item, Tail):
            rank = self.rank_of(node, item.rank)
            return None if rank is None else structs.replace(item, rank=rank.rank)
        ranks = tuple(rank.rank for rank in (self.rank_of(node, worker) for worker in item.ranks) if rank is not None)
        return structs.replace(item, ranks=ranks) if ranks else None

    def _points_from(self, node: Node, points: MetricPoints) -> MetricPoints | None:
        rank = self.rank_of(node, points.rank)
        return None if rank is None else structs.replace(points, rank=rank.rank)

    def _resources_from(self, node: Node, found: NodeResources) -> NodeResources:
        ranks = {worker: self.rank_of(node, worker) for worker in found.ranks}
        return structs.replace(found, ranks={r.rank: found.ranks[w] for w, r in ranks.items() if r is not None})

    def node_of_agent(self, agent: str) -> Node | None:
        node = self._node_of.get(agent)
        if node is None or node.agent != agent or self.nodes.get(node.node_rank) is not node:
            node = next((n for n in self.nodes.values() if n.agent == agent), None)
            self._node_of = {n.agent: n for n in self.nodes.values()}
        return node

    def missing_places(self) -> list[int]:
        return [n for n in range(self.nnodes) if n not in self.nodes or not self.nodes[n].is_here]

    def free_place(self, wanted: int) -> int | None:
        """The place of a joining node: the one it wants, or (-1) the lowest without an agent; None if that is taken."""
        return next((n for n in self.missing_places() if wanted < 0 or n == wanted), None)

    def number_ranks(self, workers: tuple[int, ...] = ()) -> None:
        """Give every rank its number, node-major, with the ids that the workers have in a world that was taken over."""
        topology = self.topology
        self._rank_of = {}
        for r in range(topology.world_size):
            node = self.nodes[topology.place(r)]
            self.ranks[r] = Rank(r, node.node_rank, workers[r] if workers else r, incarnation=node.incarnation)

    def grow(self, node: Node) -> tuple[int, ...]:
        """Take one more node in, behind all others; the numbers of its ranks, which are the highest."""
        first = len(self.ranks)
        if self.is_by_task:
            node.host = 1 + max(n.host or 0 for n in self.nodes.values())
        self.nodes[node.node_rank] = node
        self.nnodes += 1
        added = tuple(range(first, first + node.nproc))
        worker = 1 + max(rank.worker for rank in self.ranks.values())
        self._rank_of = {}
        self.ranks |= {r: Rank(r, node.node_rank, worker + n, needs_setup=True) for n, r in enumerate(added)}
        return added

    def shrink(self, gone: tuple[int, ...]) -> tuple[Numbering, list[Node]]:
        """Take ranks out and close the gaps; the new numbering, and the nodes that have no rank left."""
        numbering = Numbering.without(gone, {r.rank: r.node_rank for r in self.ranks.values()})
        released = [node for n, node in sorted(self.nodes.items()) if n not in numbering.nodes]
        ranks, nodes = self.ranks, self.nodes
        self.ranks = {new: ranks[old] for old, new in numbering.ranks.items()}
        self.nodes = {new: nodes[old] for old, new in numbering.nodes.items()}
        self.nnodes, self._rank_of = len(self.nodes), {}
        for new, node in self.nodes.items():
            node.node_rank, node.nproc = new, 0
        for new, rank in self.ranks.items():
            rank.rank, rank.node_rank = new, numbering.nodes[rank.node_rank]
            rank.lifecycle.name = f"rank {new}"
            rank.groups = [numbering.group(g) for g in rank.groups]
            self.nodes[rank.node_rank].nproc += 1
        return numbering, released

    def close_up(self) -> None:
        """Go on without the nodes that have not come: the others keep their order. Before ranks are numbered."""
        self.nodes = dict(enumerate(node for _, node in sorted(self.nodes.items()) if node.is_here))
        self.nnodes = len(self.nodes)
        for place, node in self.nodes.items():
            node.node_rank = place

    def owners(self) -> dict[str, Owner]:
        """The agents that have a place, by name."""
        placed = [(self.nodes[n], workers) for n, workers in self.workers_by_node(self.ranks).items()]
        return {node.agent: Owner(workers, node.facts.is_carried) for node, workers in placed if node.agent}

    def workers_by_node(self, ranks: Iterable[int]) -> dict[int, tuple[int, ...]]:
        """The worker ids of ``ranks``, by the node that they are on."""
        split: dict[int, list[int]] = {}
        for number in ranks:
            rank = self.ranks[number]
            split.setdefault(rank.node_rank, []).append(rank.worker)
        return {node: tuple(workers) for node, workers in split.items()}

    def listeners(self) -> tuple[tuple[str, int], ...]:
        """Every socket on which a rank's process groups listen."""
        return tuple(sorted({at for r in self.ranks.values() for at in r.listeners}))

    def common_groups(self, generation: int) -> tuple[GroupSpec, ...]:
        """The groups that cells made on all ranks of a generation, in order, up to one that some ranks did not make."""
        logs = [r.groups for r in self.ranks.values() if r.generation == generation]
        common: list[GroupSpec] = []
        for specs in zip(*logs, strict=False):
            if any(s != specs[0] for s in specs[1:]):
                break
            common.append(specs[0])
        return tuple(common)

    def where(self, rank: int) -> str:
        return self.topology.where(rank)
