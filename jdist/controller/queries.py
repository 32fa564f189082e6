"""Clients' queries to ranks and nodes: each is answered once, by the rank or node, or for it when it is gone. Pure."""

from dataclasses import dataclass

from msgspec.structs import replace

from jdist.controller.model.model import Model
from jdist.controller.model.world import Node
from jdist.core.messages.base import Progress, QueryFailed
from jdist.core.messages.protocol import NodeQuery, NodeReply, RankQuery, RankReply
from jdist.core.messages.values import BindNames, Fetch

_MOST = 4096


@dataclass
class _Pending:
    client: str
    workers: dict[int, int]  # Of those that have not answered, by worker id: the rank that it had when it was asked.
    is_moving: bool = False  # A value is on its way.


@dataclass
class _PendingNodes:
    client: str
    agents: dict[str, int]  # `{agent: the number its node had when it was asked}` of those that have not answered.


class Queries:
    """The questions that wait for ranks, and those that wait for nodes."""

    def __init__(self, model: Model):
        self._model = model
        self._pending: dict[str, _Pending] = {}
        self._of_nodes: dict[str, _PendingNodes] = {}

    def handle_rank_query(self, client: str, ask: RankQuery) -> None:
        """Forward a query to the ranks' nodes; for a rank without a process it is refused at once."""
        m = self._model
        if len(self._pending) >= _MOST:
            m.refuse(client, ask.request, f"{_MOST} questions wait for an answer already")
            return
        reachable: set[int] = set()
        for number in dict.fromkeys(ask.ranks):
            rank = m.world.ranks.get(number)
            if rank is None or not rank.has_process:
                m.send(client, RankReply(ask.request, number, QueryFailed(self._absence(number))))
            else:
                reachable.add(number)
        if reachable:
            self._pending[ask.request] = _Pending(
                client, {m.world.ranks[r].worker: r for r in reachable}, isinstance(ask.op, BindNames | Fetch)
            )
        for node_rank, workers in m.world.workers_by_node(sorted(reachable)).items():
            m.send_to_node(node_rank, RankQuery(ask.request, workers, ask.op))

    def _absence(self, number: int) -> str:
        rank = self._model.world.ranks.get(number)
        if rank is None:
            return "there is no such rank"
        why = f": {rank.death}" if rank.death else ""
        return f"{self._model.world.where(number)} has no process now{why}"

    def is_asked(self, request: str) -> bool:
        """Whether a client waits for an answer of this name."""
        return request in self._pending

    def handle_rank_reply(self, answer: RankReply) -> None:
        """Forward a rank's answer to the client that asked."""
        pending = self._pending.get(answer.request)
        worker = self._model.world.ranks[answer.rank].worker
        if pending is None or worker not in pending.workers:
            return
        asked = pending.workers[worker]
        self._model.send(pending.client, answer if asked == answer.rank else replace(answer, rank=asked))
        if not isinstance(answer.body, Progress):
            del pending.workers[worker]
            if not pending.workers:
                del self._pending[answer.request]

    def answer_for(self, rank: int, reason: str) -> None:
        """Refuse the queries that wait for a rank which is gone."""
        for request in list(self._pending):
            self.handle_rank_reply(RankReply(request, rank, QueryFailed(reason)))

    # ------------------------------------------------------------ nodes

    def handle_node_query(self, client: str, ask: NodeQuery) -> None:
        """Forward a query to the nodes' agents; for a node that is not attached it is refused at once."""
        m = self._model
        agents: dict[str, int] = {}
        for number in dict.fromkeys(ask.nodes):
            node = m.world.nodes.get(number)
            if node is None or not node.is_here:
                m.send(client, NodeReply(ask.request, number, QueryFailed(f"node {number} is not here")))
            else:
                agents[node.agent] = number
        if agents:
            self._of_nodes[ask.request] = _PendingNodes(client, dict(agents))
        for agent, number in agents.items():
            m.send(agent, NodeQuery(ask.request, (number,), ask.op))

    def _answer_node(self, agent: str, answer: NodeReply) -> None:
        """Pass on what a node's agent answered to who asked."""
        pending = self._of_nodes.get(answer.request)
        if pending is None or agent not in pending.agents:
            return
        self._model.send(pending.client, replace(answer, node=pending.agents[agent]))
        if not isinstance(answer.body, Progress):
            del pending.agents[agent]
            if not pending.agents:
                del self._of_nodes[answer.request]

    def handle_node_reply(self, node: Node, answer: NodeReply) -> None:
        """A node's agent has answered."""
        self._answer_node(node.agent, answer)

    def answer_for_node(self, agent: str, reason: str) -> None:
        """Refuse the queries that wait for an agent which is gone."""
        for request in list(self._of_nodes):
            self._answer_node(agent, NodeReply(request, 0, QueryFailed(reason)))

    # ------------------------------------------------------------ both

    def moving(self) -> tuple[int, ...]:
        """Ranks from or to which a value is on its way."""
        moving = {worker for p in self._pending.values() if p.is_moving for worker in p.workers}
        return tuple(sorted(r.rank for r in self._model.world.ranks.values() if r.worker in moving))

    def forget(self, client: str) -> None:
        """Drop the queries of a client that is gone."""
        self._pending = {request: p for request, p in self._pending.items() if p.client != client}
        self._of_nodes = {request: p for request, p in self._of_nodes.items() if p.client != client}
