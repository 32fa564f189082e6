"""Clients' queries to ranks and nodes: each is answered once, by the rank or node, or for it when it is gone. Pure."""

from dataclasses import dataclass

from msgspec.structs import replace

from jdist.controller.model.model import Model
from jdist.core.messages.base import Progress, QueryFailed
from jdist.core.messages.protocol import NodeQuery, NodeReply, RankQuery, RankReply
from jdist.core.messages.values import BindNames, Fetch

_MOST = 4096


@dataclass
class _Pending:
    """A query that has not been answered by all."""

    client: str
    asked: dict[int | str, int]  # Workers or agents that have not answered; the rank or node that each was.
    is_moving: bool = False  # A value is on its way.


class Queries:
    """The queries that wait for ranks or nodes, by request."""

    def __init__(self, model: Model):
        self._model = model
        self._pending: dict[str, _Pending] = {}

    def handle_rank_query(self, client: str, ask: RankQuery) -> None:
        """Forward a query to the ranks' nodes; for a rank without a process it is refused at once."""
        m = self._model
        if len(self._pending) >= _MOST:
            m.refuse(client, ask.request, f"{_MOST} questions wait for an answer already")
            return
        asked: dict[int | str, int] = {}
        for number in dict.fromkeys(ask.ranks):
            rank = m.world.ranks.get(number)
            if rank is not None and rank.has_process:
                asked[rank.worker] = number
                continue
            why = "there is no such rank"
            if rank is not None:
                why = f"{m.world.where(number)} has no process now" + (f": {rank.death}" if rank.death else "")
            m.send(client, RankReply(ask.request, number, QueryFailed(why)))
        if asked:
            self._pending[ask.request] = _Pending(client, asked, isinstance(ask.op, BindNames | Fetch))
        for node_rank, workers in m.world.workers_by_node(sorted(asked.values())).items():
            m.send_to_node(node_rank, RankQuery(ask.request, workers, ask.op))

    def handle_node_query(self, client: str, ask: NodeQuery) -> None:
        """Forward a query to the nodes' agents; for a node that is not attached it is refused at once."""
        asked: dict[int | str, int] = {}
        for number in dict.fromkeys(ask.nodes):
            node = self._model.world.nodes.get(number)
            if node is not None and node.is_here:
                asked[node.agent] = number
                self._model.send(node.agent, NodeQuery(ask.request, (number,), ask.op))
            else:
                self._model.send(client, NodeReply(ask.request, number, QueryFailed(f"node {number} is not here")))
        if asked:
            self._pending[ask.request] = _Pending(client, asked)

    def is_asked(self, request: str) -> bool:
        return request in self._pending

    def handle_rank_reply(self, reply: RankReply) -> None:
        self.forward(self._model.world.ranks[reply.rank].worker, reply)

    def forward(self, source: int | str, reply: RankReply | NodeReply) -> None:
        """Forward an answer of a worker or an agent, under the number that it had when it was asked."""
        pending = self._pending.get(reply.request)
        if pending is None or source not in pending.asked:
            return
        number = pending.asked[source]
        named = replace(reply, rank=number) if isinstance(reply, RankReply) else replace(reply, node=number)
        self._model.send(pending.client, named)
        if not isinstance(reply.body, Progress):
            del pending.asked[source]
            if not pending.asked:
                del self._pending[reply.request]

    def answer_for(self, rank: int, reason: str) -> None:
        """Refuse the queries that wait for a rank which is gone."""
        for request in list(self._pending):
            self.handle_rank_reply(RankReply(request, rank, QueryFailed(reason)))

    def answer_for_node(self, agent: str, reason: str) -> None:
        """Refuse the queries that wait for an agent which is gone."""
        for request in list(self._pending):
            self.forward(agent, NodeReply(request, 0, QueryFailed(reason)))

    def moving(self) -> tuple[int, ...]:
        """Ranks from or to which a value is on its way."""
        moving = {worker for p in self._pending.values() if p.is_moving for worker in p.asked}
        return tuple(sorted(r.rank for r in self._model.world.ranks.values() if r.worker in moving))

    def forget(self, client: str) -> None:
        self._pending = {request: p for request, p in self._pending.items() if p.client != client}
