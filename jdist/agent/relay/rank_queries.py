"""Rank queries: routes them to this node's ranks, and answers those that the agent can answer itself."""

import asyncio
import logging
import socket

import msgspec

from jdist.agent.node.context import NodeContext
from jdist.agent.processes.workers import Workers
from jdist.agent.relay.gpu_meter import GpuMeter
from jdist.agent.relay.rank_logs import RankLogs
from jdist.agent.relay.unresponsive import UnresponsiveRanks
from jdist.core.errors import JdistError
from jdist.core.messages.base import Message, Progress, QueryFailed
from jdist.core.messages.introspection import Console, ConsoleAt, Logs, LogText
from jdist.core.messages.observation import Observe
from jdist.core.messages.protocol import RankQuery, RankReply, RankReplyBody
from jdist.core.messages.values import BindNames, Evaluate
from jdist.wire.transport.dialing import get_segment
from jdist.wire.values.segments import Segment, shares_memory

_log = logging.getLogger("jdist.agent")

_NO_PROCESS = "this rank has no process now; the status of the cluster says why"


class RankQueries:
    """Routes each query; brings a pushed value's bytes to this node once for all its ranks."""

    def __init__(self, node: NodeContext, workers: Workers, logs: RankLogs, meter: GpuMeter):
        self._node = node
        self._workers = workers
        self._logs = logs
        self._meter = meter
        self._unresponsive = UnresponsiveRanks(meter.forward)
        # Values that were fetched for these workers, by request.
        self._fetched: dict[str, tuple[Segment, set[int]]] = {}

    def handle_query(self, query: RankQuery) -> None:
        """Route a query from the controller."""
        op = query.op
        if isinstance(op, BindNames) and op.path and not shares_memory(op.probe):
            self._node.create_task(self._fetch(query, op))
            return
        if isinstance(op, Evaluate) and op.probe is not None and not shares_memory(op.probe):
            op = msgspec.structs.replace(op, probe=None)
        if isinstance(op, Observe) and op.with_gpu:
            self._meter.request(query.request)
        for worker in query.ranks:
            match op:
                case Logs():
                    self._reply(query, worker, LogText(self._logs.read(worker, op.lines), str(self._logs.path(worker))))
                case Console():
                    self._reply(query, worker, self._console(worker))
                case _:
                    self._forward(worker, RankQuery(query.request, (worker,), op))

    def is_late(self, message: Message) -> bool:
        """Whether this is an answer that the agent has given in the rank's place."""
        return isinstance(message, RankReply) and self._unresponsive.is_late(message)

    def record_reply(self, message: Message) -> None:
        """Remove a value that was fetched for some ranks when all of them have answered."""
        if (
            not isinstance(message, RankReply)
            or message.request not in self._fetched
            or isinstance(message.body, Progress)
        ):
            return
        segment, workers = self._fetched[message.request]
        workers.discard(message.rank)
        if not workers:
            del self._fetched[message.request]
            segment.unlink()

    def _reply(self, query: RankQuery, worker: int, body: RankReplyBody) -> None:
        self._meter.forward(RankReply(query.request, worker, body))

    def _console(self, worker: int) -> ConsoleAt | QueryFailed:
        kernel = self._workers.kernels.get(worker)
        if kernel is None:
            return QueryFailed(_NO_PROCESS)
        return ConsoleAt(socket.gethostname(), str(kernel.place.connection_file))

    def _forward(self, worker: int, query: RankQuery) -> None:
        if not self._workers.send(worker, query):
            answer = RankReply(query.request, worker, QueryFailed(_NO_PROCESS))
            self.record_reply(answer)
            self._meter.forward(answer)
        elif isinstance(query.op, Observe) and worker in self._workers.kernels:
            self._unresponsive.expect(query.request, worker, self._workers.kernels[worker].pid)

    async def _fetch(self, query: RankQuery, op: BindNames) -> None:
        loop, node = asyncio.get_running_loop(), self._node

        def report(done: int) -> None:
            loop.call_soon_threadsafe(self._reply, query, query.ranks[0], Progress(done, op.nbytes))

        try:
            cluster = node.endpoint.cluster
            segment = await asyncio.to_thread(get_segment, node.data_port, op.transfer, cluster, op.nbytes, report)
        except Exception as e:  # a failed query must not cost the node its ranks
            reason = str(e) if isinstance(e, OSError | JdistError) else repr(e)
            if not isinstance(e, OSError | JdistError):
                _log.exception("a value did not reach this node")
            for worker in query.ranks:
                self._reply(query, worker, QueryFailed(f"the value did not reach {socket.gethostname()}: {reason}"))
            return
        segment.close()
        self._fetched[query.request] = (segment, set(query.ranks))
        for worker in query.ranks:
            self._forward(worker, RankQuery(query.request, (worker,), msgspec.structs.replace(op, path=segment.path)))
