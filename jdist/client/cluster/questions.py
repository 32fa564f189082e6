"""Questions: what a cluster and its ranks are asked that changes nothing and that no cell has to end for."""

from __future__ import annotations

import asyncio
import contextlib

from jdist.client.cluster.attachment import Attachment, Ranks
from jdist.client.link import new_request
from jdist.client.trace import collect
from jdist.client.trace.trace import Trace
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.introspection import Complete, Completed, Console, ConsoleAt, Inspect, Inspected, Logs, LogText
from jdist.core.messages.observation import GetStack, Observation, Observe, StackText
from jdist.core.messages.protocol import RankOp, RankQuery, RankReply, RankReplyBody
from jdist.core.messages.status import StatusReport, StatusRequest


class Questions(Attachment):
    """The questions to an attached cluster."""

    async def status(self) -> StatusReport:
        """Every rank's row, unfinished runs, groups."""
        answer = await self.link.request(StatusRequest(new_request()))
        if not isinstance(answer, StatusReport):
            raise UsageError(f"an unexpected answer: {answer}")
        return answer

    async def look(self, ranks: Ranks = None, timeout: float = 2.0) -> dict[int, Observation]:
        """What each rank's main thread does now, and what it has of its GPU; a rank that does not answer is missing."""
        answers = await self.link.ask(self.select(ranks), Observe(with_gpu=True), timeout)
        return {r: a for r, a in sorted(answers.items()) if isinstance(a, Observation)}

    async def trace(self, run: int = 0) -> Trace:
        """The calls of torch.distributed that ranks made in ``run`` (0: the last one), with who waited for whom.

        Notebooks draw it. A rank that does not answer is in its ``absent``. Raises UsageError when no rank knows of it.
        """
        return await collect.ask(self.link, self.facts, run)

    async def stack(self, rank: int, timeout: float = 5.0) -> str:
        """The stack of a rank's main thread, as Python prints one; from the cell on, where one runs."""
        (chosen,) = self.select(rank)
        answer = (await self.link.ask((chosen,), GetStack(), timeout))[chosen]
        if not isinstance(answer, StackText):
            raise UsageError(f"rank {chosen}: {answer.reason if isinstance(answer, QueryFailed) else answer}")
        return answer.text

    async def logs(self, rank: int, lines: int = 50) -> LogText:
        """The newest lines of a rank's log, and where it lies on its node."""
        answer = (await self.link.ask(self.select(rank), Logs(lines)))[self.select(rank)[0]]
        if not isinstance(answer, LogText):
            raise UsageError(answer.reason if isinstance(answer, QueryFailed) else str(answer))
        return answer

    async def console(self, rank: int) -> ConsoleAt:
        """Host and connection file for ``jupyter console --existing``."""
        answer = (await self.link.ask(self.select(rank), Console()))[self.select(rank)[0]]
        if not isinstance(answer, ConsoleAt):
            raise UsageError(answer.reason if isinstance(answer, QueryFailed) else str(answer))
        return answer

    async def complete(self, code: str, cursor: int, ranks: Ranks = None, timeout: float = 0.2) -> dict[int, Completed]:
        """Names in ranks' namespaces that go on with what stands before ``cursor`` in ``code``, a line.

        A rank that does not answer within ``timeout`` seconds is missing.
        """
        answers = await self._within(self.select(ranks), Complete(code, cursor), timeout)
        return {r: a for r, a in sorted(answers.items()) if isinstance(a, Completed)}

    async def inspect(self, name: str, ranks: Ranks = None, detail: int = 0, timeout: float = 0.2) -> dict[int, str]:
        """What a name is on ranks: type, signature, documentation, with ``detail`` 1 its source; "" for no such name.

        A rank that does not answer within ``timeout`` seconds is missing.
        """
        answers = await self._within(self.select(ranks), Inspect(name, detail), timeout)
        return {r: a.text for r, a in sorted(answers.items()) if isinstance(a, Inspected)}

    async def _within(self, ranks: tuple[int, ...], op: RankOp, seconds: float) -> dict[int, RankReplyBody]:
        """The answers that come in time."""
        found: dict[int, RankReplyBody] = {}
        request = new_request()
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds),
                contextlib.aclosing(self.link.answers(request, RankQuery(request, ranks, op), seconds)) as answers,
            ):
                while len(found) < len(ranks):
                    answer = await anext(answers)
                    if isinstance(answer, RankReply):
                        found[answer.rank] = answer.body
        return found
