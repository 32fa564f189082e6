"""Queries: requests to a cluster and its ranks that run no cell and wait for none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from jdist.client import debug_log
from jdist.client.attachment import Attachment, Ranks
from jdist.client.debug_log import DebugLogs
from jdist.client.doctor.collect import examine
from jdist.client.doctor.diagnosis import Diagnosis
from jdist.client.history import GroupStep, MeshStep
from jdist.client.link import body_of, new_request
from jdist.client.trace import collect
from jdist.client.trace.trace import Trace
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message, QueryFailed
from jdist.core.messages.groups import GroupCreated, MakeGroup, MakeMesh
from jdist.core.messages.introspection import Complete, Completed, Console, ConsoleAt, Inspect, Inspected, Logs, LogText
from jdist.core.messages.observation import GetStack, Observation, Observe, StackText
from jdist.core.messages.protocol import RankOp, RankQuery, RankReply
from jdist.core.messages.status import StatusReport, StatusRequest
from jdist.core.settings import REFORM_TIMEOUT
from jdist.core.topology import Mesh

T = TypeVar("T")


class ClusterQueries:
    """The queries of an attached client, as AsyncCluster documents them."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    async def status(self) -> StatusReport:
        return await self._attachment.link.request(StatusRequest(new_request()), StatusReport)

    async def look(self, ranks: Ranks, timeout: float) -> dict[int, Observation]:
        answers = await self._attachment.link.query(self._attachment.select(ranks), Observe(with_gpu=True), timeout)
        return {r: a for r, a in sorted(answers.items()) if isinstance(a, Observation)}

    async def trace(self, run: int) -> Trace:
        return await collect.collect(self._attachment.link, self._attachment.facts, run)

    async def doctor(self, burst: float, on_step: Callable[[str], None] | None) -> Diagnosis:
        return await examine(self._attachment.link, self._attachment.facts, burst, on_step or (lambda _: None))

    async def stack(self, rank: int, timeout: float) -> str:
        return (await self._query_one(rank, GetStack(), StackText, timeout)).text

    async def logs(self, rank: int, lines: int) -> LogText:
        return await self._query_one(rank, Logs(lines), LogText)

    async def debug_log(self, lines: int) -> DebugLogs:
        return await debug_log.collect(self._attachment.link, self._attachment.facts, lines)

    async def console(self, rank: int) -> ConsoleAt:
        return await self._query_one(rank, Console(), ConsoleAt)

    async def complete(self, code: str, cursor: int, ranks: Ranks, timeout: float) -> dict[int, Completed]:
        return await self._query_within(ranks, Complete(code, cursor), Completed, timeout)

    async def inspect(self, name: str, ranks: Ranks, detail: int, timeout: float) -> dict[int, str]:
        answers = await self._query_within(ranks, Inspect(name, detail), Inspected, timeout)
        return {r: a.text for r, a in answers.items()}

    async def new_group(self, name: str, ranks: Ranks) -> str:
        if not name.isidentifier() or name in ("world", "all", "node"):
            raise UsageError(f"a group's name is a plain word other than world, all and node; not {name!r}")
        chosen = self._attachment.select(ranks)
        text = await self._make(MakeGroup(new_request(), name, chosen))
        self._attachment.history.add(GroupStep(name, chosen))
        return text

    async def new_mesh(self, text: str) -> str:
        mesh = Mesh.parse(text, self._attachment.topology.world_size)
        text = await self._make(MakeMesh(new_request(), mesh.names, mesh.sizes))
        self._attachment.history.add(MeshStep(mesh.names, mesh.sizes))
        return text

    async def _make(self, message: Message) -> str:
        return (await self._attachment.link.request(message, GroupCreated, REFORM_TIMEOUT)).text

    async def _query_one(self, rank: int, op: RankOp, expected: type[T], timeout: float = 30.0) -> T:
        (chosen,) = self._attachment.select(rank)
        answer = (await self._attachment.link.query((chosen,), op, timeout))[chosen]
        if isinstance(answer, QueryFailed):
            raise UsageError(f"rank {chosen}: {answer.reason}")
        return body_of(answer, expected)

    async def _query_within(self, ranks: Ranks, op: RankOp, expected: type[T], seconds: float) -> dict[int, T]:
        """The answers that arrive within ``seconds``, in the order of ranks."""
        found: dict[int, T] = {}
        request, chosen = new_request(), self._attachment.select(ranks)
        replies = self._attachment.link.answers(request, RankQuery(request, chosen, op), seconds)
        missing = set(chosen)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), contextlib.aclosing(replies):
                while missing:
                    reply = await anext(replies)
                    if isinstance(reply, RankReply):
                        missing.discard(reply.rank)
                        if isinstance(reply.body, expected):
                            found[reply.rank] = reply.body
        return dict(sorted(found.items()))
