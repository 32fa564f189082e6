"""Answering: the questions that are asked of the node itself, each on a task of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from jdist.agent.code.sync import Syncing
from jdist.agent.node.facts import interface_environment
from jdist.agent.processes.kernel import Starter
from jdist.agent.relay.node_report import report_briefly, report_fully
from jdist.core.errors import JdistError
from jdist.core.messages.base import Message, Progress, QueryFailed
from jdist.core.messages.code import AdoptTree, ApplyTree, CompareTree, StorePieces
from jdist.core.messages.membership import NodeFacts
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
from jdist.core.messages.protocol import NodeOp, NodeQuery, NodeReply, NodeReplyBody
from jdist.wire.bulk.probe import Listener, reach

_LONGEST = 600.0
"""Seconds that a listener may be asked for."""


class NodeAnswers:
    """Answers for this node. ``keep`` runs a task until the agent ends."""

    def __init__(
        self,
        facts: NodeFacts,
        starter: Starter,
        directory: Path,
        send: Callable[[Message], object],
        keep: Callable[[Coroutine[Any, Any, None]], object],
        syncing: Syncing,
    ):
        self._loop = asyncio.get_running_loop()
        self._syncing = syncing
        self._facts = facts
        self._starter = starter
        self._directory = directory
        self._send = send
        self._keep = keep
        self._examining = asyncio.Lock()
        self._listeners: dict[str, Listener] = {}

    def take(self, ask: NodeQuery) -> None:
        """Answer a question from the controller: the time at once, everything else as soon as it is known."""
        if isinstance(ask.op, ReadClock):
            self._say(ask, ClockReading(time.time()))
        else:
            self._keep(self._answer(ask))

    def _say(self, ask: NodeQuery, body: NodeReplyBody) -> None:
        self._send(NodeReply(ask.request, ask.nodes[0], body))

    async def _answer(self, ask: NodeQuery) -> None:
        try:
            self._say(ask, await self._find_out(ask.op, partial(self._say_progress, ask)))
        except Exception as e:  # whatever it is, a question must not cost the node its ranks
            reason = str(e) if isinstance(e, OSError | JdistError) else repr(e)
            self._say(ask, QueryFailed(f"{self._facts.hostname}: {reason}"))

    def _say_progress(self, ask: NodeQuery, done: int) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._say, ask, Progress(done, 0))

    async def _find_out(self, op: NodeOp, progress: Callable[[int], None]) -> NodeReplyBody:
        match op:
            case ReportNode():
                return await self._examine(op)
            case Listen():
                return self._listen(op)
            case ProbePath():
                target = (op.address, op.port)
                return PathProbed(await asyncio.to_thread(reach, op.hostname, target, op.token, op.timeout, op.burst))
            case ReadClock():
                return ClockReading(time.time())
            case CompareTree() | StorePieces() | ApplyTree() | AdoptTree():
                return await self._syncing.answer(op, progress)

    def _listen(self, op: Listen) -> Listening:
        old = self._listeners.pop(op.token, None)
        if old is not None:
            old.close()
        if op.seconds <= 0:
            return Listening(0)
        self._listeners = {token: each for token, each in self._listeners.items() if not each.is_over}
        listener = self._listeners[op.token] = Listener(self._facts.address, op.token, min(op.seconds, _LONGEST))
        return Listening(listener.port)

    async def _examine(self, op: ReportNode) -> NodeReported:
        chosen = interface_environment(self._facts.address)
        if op.is_brief:
            return NodeReported(report_briefly(self._facts, chosen), time.time())
        async with self._examining:  # two clients at once: they share the report's socket
            report = await report_fully(self._facts, chosen, self._starter, self._directory)
        return NodeReported(report, time.time())
