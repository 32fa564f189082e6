"""Cells: code is sent to ranks and becomes a run, which is waited for, answered or interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jdist.client.active_runs import Underway
from jdist.client.cluster.attachment import Attachment, Ranks
from jdist.client.expressions import script_cell
from jdist.client.link import new_request
from jdist.client.run import CellRun
from jdist.core.errors import UsageError
from jdist.core.messages.runs import InputReply, Interrupt, RunAccepted, RunCell


class Cells(Attachment):
    """The cells of an attached cluster."""

    def __init__(self) -> None:
        super().__init__()
        self._underway = Underway(lambda: self.topology, self.interrupt_now)

    async def run(  # noqa: PLR0913 — the options of a cell, by name
        self,
        code: str,
        ranks: Ranks = None,
        *,
        group: str | None = None,
        timeout: float | None = None,
        check: bool = True,
        background: bool = False,
        allow_stdin: bool = False,
        setup: bool = False,
        internal: bool = False,
    ) -> CellRun:
        """Run ``code`` on ranks and wait for it (not with ``background``).

        ``timeout`` counts seconds from the moment when the ranks start on it. Raises CellError (CellTimeout, RankLost,
        CellInterrupted) when a rank failed, unless ``check`` is False; the run is on the error.
        """
        run = await self.submit(
            code, self.select(ranks, group), timeout=timeout, allow_stdin=allow_stdin, setup=setup, internal=internal
        )
        if not background:
            try:
                await run
            except asyncio.CancelledError:  # whoever waited gives up: the ranks must not go on
                run.cancel()
                raise
            if check:
                run.check()
        return run

    async def run_async(self, code: str, ranks: Ranks = None, *, timeout: float | None = None) -> CellRun:
        """Run ``code`` and return at once; wait with ``run.wait()`` or ``await run``."""
        return await self.run(code, ranks, timeout=timeout, background=True)

    async def submit(
        self,
        code: str,
        ranks: tuple[int, ...],
        *,
        timeout: float | None = None,
        allow_stdin: bool = False,
        setup: bool = False,
        internal: bool = False,
    ) -> CellRun:
        """Send a cell off. Raises UsageError when the controller refuses it."""
        if timeout is not None and not timeout > 0:
            raise UsageError(f"a timeout is a positive number of seconds, not {timeout}")
        message = RunCell(new_request(), code, ranks, timeout, allow_stdin, setup, internal)
        with self._underway.awaiting(message.request, ranks):
            accepted = await self.link.request(message)
        if not isinstance(accepted, RunAccepted):
            raise UsageError(f"an unexpected answer: {accepted}")
        run = self._underway.take(accepted)
        if not internal:
            self.history.add_cell(run, code, self.world_size, setup)
        return run

    async def answer_input(self, run: int, rank: int, text: str) -> None:
        """What the user typed for a rank that reads input()."""
        self.link.send(InputReply(run, rank, text))

    async def interrupt(self, ranks: Ranks = None, *, run: int = 0) -> None:
        """Stop what runs on ``ranks`` (or one run); every namespace is kept and the world re-formed."""
        chosen = () if ranks is None else self.select(ranks)
        await self.link.request(Interrupt(new_request(), chosen, run))

    def interrupt_now(self, run: int) -> None:
        """Send an interrupt without waiting for an answer; on the link's loop. A cluster that is gone runs nothing."""
        if not self.link.lost:
            self.link.send(Interrupt("", (), run))

    async def run_script(
        self, path: str, args: Sequence[str] = (), ranks: Ranks = None, *, timeout: float | None = None
    ) -> CellRun:
        """Run a torchrun script on every rank as ``__main__``, in the live session."""
        return await self.run(script_cell(path, args), ranks, timeout=timeout)
