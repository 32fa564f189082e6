"""Node queries: answers what is asked of the node itself, each query in a task of its own."""

import asyncio
import logging
import time

from jdist.agent.code_sync import CodeReceiver
from jdist.agent.node.context import NodeContext
from jdist.agent.node.facts import interface_environment
from jdist.agent.relay.node_report import report_briefly, report_fully
from jdist.core.errors import JdistError
from jdist.core.messages.base import Progress, QueryFailed
from jdist.core.messages.code import AdoptTree, ApplyTree, CompareTree, StorePieces
from jdist.core.messages.introspection import DebugLog, GetDebugLog
from jdist.core.messages.nodes import (
    ClockReading,
    Listen,
    Listening,
    NodeReported,
    PathProbed,
    ProbePath,
    ReadClock,
    ReportNode,
)
from jdist.core.messages.protocol import NodeQuery, NodeReply, NodeReplyBody
from jdist.wire import log
from jdist.wire.bulk.probe import Listener, probe_path

_log = logging.getLogger("jdist.agent")

_LONGEST = 600.0  # Seconds that a listener may be asked for.


class NodeQueries:
    """Answers for this node."""

    def __init__(self, node: NodeContext, code_sync: CodeReceiver):
        self._node = node
        self._facts = node.facts
        self._code_sync = code_sync
        self._reporting = asyncio.Lock()
        self._listeners: dict[str, Listener] = {}

    def handle_query(self, query: NodeQuery) -> None:
        """Answer a query from the controller: the time at once, everything else as soon as it is known."""
        if isinstance(query.op, ReadClock):
            self._reply(query, ClockReading(time.time()))
        else:
            self._node.create_task(self._answer(query))

    def _reply(self, query: NodeQuery, body: NodeReplyBody) -> None:
        self._node.send(NodeReply(query.request, query.nodes[0], body))

    async def _answer(self, query: NodeQuery) -> None:
        try:
            self._reply(query, await self._perform(query))
        except Exception as e:  # a failed query must not cost the node its ranks
            reason = str(e) if isinstance(e, OSError | JdistError) else repr(e)
            if not isinstance(e, OSError | JdistError):
                _log.exception("could not answer %s", type(query.op).__name__)
            self._reply(query, QueryFailed(f"{self._facts.hostname}: {reason}"))

    async def _perform(self, query: NodeQuery) -> NodeReplyBody:
        match op := query.op:
            case ReportNode():
                return await self._report_node(op)
            case Listen():
                return self._listen(op)
            case ProbePath():
                probed = (op.hostname, (op.address, op.port), op.token, op.timeout, op.burst)
                return PathProbed(await asyncio.to_thread(probe_path, *probed))
            case ReadClock():
                return ClockReading(time.time())
            case GetDebugLog():
                return DebugLog(log.newest(op.lines))
            case CompareTree() | StorePieces() | ApplyTree() | AdoptTree():
                loop = asyncio.get_running_loop()

                def report_progress(done: int) -> None:  # from any thread
                    loop.call_soon_threadsafe(self._reply, query, Progress(done, 0))

                return await self._code_sync.answer(op, report_progress)

    def _listen(self, op: Listen) -> Listening:
        old = self._listeners.pop(op.token, None)
        if old is not None:
            old.close()
        if op.seconds <= 0:
            return Listening(0)
        self._listeners = {token: each for token, each in self._listeners.items() if not each.is_over}
        listener = self._listeners[op.token] = Listener(self._facts.address, op.token, min(op.seconds, _LONGEST))
        return Listening(listener.port)

    async def _report_node(self, op: ReportNode) -> NodeReported:
        chosen = interface_environment(self._facts.address)
        if op.is_brief:
            return NodeReported(report_briefly(self._facts, chosen), time.time())
        async with self._reporting:  # two clients at once share the report's socket
            report = await report_fully(self._facts, chosen, self._node.starter, self._node.directory)
        return NodeReported(report, time.time())
