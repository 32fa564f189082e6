"""Active runs: the part of a cluster that runs cells, and feeds each with the controller's messages about it."""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jdist.client.attachment import Attachment, Ranks
from jdist.client.link import Link, new_request
from jdist.client.run import CellRun
from jdist.core.errors import ConnectionLost, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.debug import FollowRun, RunFollowed
from jdist.core.messages.runs import (
    CellSpec,
    InputReply,
    Interrupt,
    MetricsLogged,
    RankDone,
    ReadRun,
    RunAccepted,
    RunCell,
    RunRecord,
    RunStarted,
)
from jdist.core.messages.status import Notice, Stopped
from jdist.core.rank_code import run_script


class ActiveRuns:
    """The part of a cluster that runs cells: its runs by number. All methods are called on the link's loop."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        attachment.route(self.handle)
        self._runs: dict[int, CellRun] = {}
        # Runs that are over, while a caller holds them: threads of the cell may still write output.
        self._ended: weakref.WeakValueDictionary[int, CellRun] = weakref.WeakValueDictionary()
        self._submitted: dict[str, tuple[int, ...]] = {}  # Ranks of cells that wait to be accepted, by request.
        self._accepted: dict[str, CellRun] = {}  # Their runs, until the submitters take them; some end before that.
        self._to_follow: set[str] = set()  # Requests to follow a run.
        self._others: set[int] = set()  # Runs that this client has not submitted.
        self._to_resume: set[str] = set()  # Requests for what was recorded of a run after a loss.
        self._to_interrupt: set[int] = set()  # Runs that the user has interrupted meanwhile.
        self._resuming: asyncio.Task[None] | None = None

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
        hold: bool = False,
        in_failure: bool = False,
    ) -> CellRun:
        """Run ``code`` on ranks and wait for it (not with ``background``). On a paused rank, it runs in its frame.

        ``timeout`` counts seconds from the moment when the ranks start on it; pauses do not count. With ``hold``, a
        failure pauses the rank where it happened; with ``in_failure``, the cell runs where the ranks' last cell failed
        (see :meth:`debug`). Raises CellError (CellTimeout, RankLost, CellInterrupted) when a rank failed, unless
        ``check`` is False; the run is on the error.

        >>> (await cluster.run("x = rank * 10; x", ranks="0-3", timeout=20)).values
        {0: 0, 1: 10, 2: 20, 3: 30}
        """
        run = await self.submit(
            code,
            self._attachment.select_paused(ranks, group),
            timeout=timeout,
            allow_stdin=allow_stdin,
            is_setup=setup,
            is_internal=internal,
            holds=hold,
            in_failure=in_failure,
        )
        return run if background else await self.wait(run, check=check)

    async def run_async(self, code: str, ranks: Ranks = None, *, timeout: float | None = None) -> CellRun:
        """Run ``code`` and return at once; wait with ``run.wait()`` or ``await run``."""
        return await self.run(code, ranks, timeout=timeout, background=True)

    async def run_script(
        self, path: str, args: Sequence[str] = (), ranks: Ranks = None, *, timeout: float | None = None
    ) -> CellRun:
        """Run a torchrun script on every rank as ``__main__``, in the live session."""
        return await self.run(script_cell(path, args), ranks, timeout=timeout)

    async def submit(self, /, code: str, ranks: tuple[int, ...], **options: Any) -> CellRun:
        """Send a cell to the ranks and return its run without waiting for it. Raises UsageError when it is refused.

        ``options`` are the fields of :class:`~jdist.core.messages.runs.CellSpec`.
        """
        cell = RunCell(new_request(), CellSpec(code, **options), ranks)
        if cell.spec.timeout is not None and not cell.spec.timeout > 0:
            raise UsageError(f"a timeout is a positive number of seconds, not {cell.spec.timeout}")
        await self._attachment.prepare_cell()
        paused = set(self._attachment.facts.paused)
        self._submitted[cell.request] = cell.ranks
        try:
            accepted = await self._attachment.link.request(cell, RunAccepted)
            run = self._accepted[cell.request]
        finally:
            self._submitted.pop(cell.request, None)
            self._accepted.pop(cell.request, None)
        run.behind, run.timeout = accepted.behind, cell.spec.timeout
        if not cell.spec.is_internal:
            facts, history = self._attachment.facts, self._attachment.history
            is_inner = cell.spec.in_failure or not paused.isdisjoint(cell.ranks)
            world_size = facts.topology.world_size
            history.add_cell(run, cell.spec.code, world_size, is_setup=cell.spec.is_setup, is_inner=is_inner)
        return run

    async def answer_input(self, run: int, rank: int, text: str) -> None:
        """Send the line that the user typed to a rank that reads input()."""
        self._attachment.link.send(InputReply(run, rank, text))

    async def interrupt(self, ranks: Ranks = None, *, run: int = 0) -> None:
        """Stop what runs on ``ranks``, or one run; every namespace is kept and the world re-formed.

        Raises UsageError if ``run`` is over.
        """
        chosen = () if ranks is None else self._attachment.select(ranks)
        await self._attachment.link.request(Interrupt(new_request(), chosen, run), object)

    def __contains__(self, number: int) -> bool:
        return number in self._runs

    def get(self, number: int) -> CellRun | None:
        """A run that is not over; None if it is, or if this client does not follow it."""
        return self._runs.get(number)

    async def follow(self, run: int) -> CellRun:
        """Follow a run that was started before this client attached, or by another client.

        It has the output from now on only. Raises UsageError if the run is over or unknown.
        """
        if (known := self._runs.get(run)) is not None:
            return known
        request = new_request()
        self._to_follow.add(request)
        try:
            await self._attachment.link.request(FollowRun(request, run), RunFollowed)
            return self._accepted[request]
        finally:
            self._to_follow.discard(request)
            self._accepted.pop(request, None)

    async def read_run(self, number: int = 0) -> CellRun:
        """A run of this cluster (0: the newest), also one of another notebook: what it has written, and how it ended.

        The controller keeps this of the newest runs, without values; ``outcomes`` has it by rank. Raises UsageError if
        it is not kept any more.
        """
        record = await self._attachment.link.request(ReadRun(new_request(), number), RunRecord)
        run = CellRun(record.run, record.ranks, self._attachment.facts.topology, self._interrupter())
        run.is_whole = False
        for message in record.messages:
            run.feed(message)
        run.seconds, run.timeout = max(0.0, record.seconds), record.timeout
        return run

    async def wait(self, run: CellRun, *, check: bool = True) -> CellRun:
        """Wait for a run, and interrupt it when the waiting is cancelled. With ``check``, raise the run's error."""
        try:
            await run
        except asyncio.CancelledError:
            run.cancel()
            raise
        if check:
            run.check()
        return run

    async def run_internal(self, code: str, ranks: tuple[int, ...] = ()) -> CellRun:
        """Run a cell of jdist's own on ranks, by default all, and wait for it. Raises CellError."""
        return await self.wait(await self.submit(code, ranks or self._attachment.select(), is_internal=True))

    async def run_refusable(self, code: str, ranks: tuple[int, ...] = ()) -> CellRun:
        """Run a cell of jdist's own, as :meth:`run_internal` does. Raises UsageError where the ranks do."""
        run = await self.submit(code, ranks or self._attachment.select(), is_internal=True)
        await self.wait(run, check=False)
        errors = [o.error for o in run.outcomes.values() if o.error is not None and o.error.ename == "UsageError"]
        if errors:
            raise UsageError(errors[0].evalue)
        run.check()
        return run

    def interrupt_now(self, run: int) -> None:
        """Send an interrupt without waiting for the answer. Does nothing once the cluster is lost."""
        link = self._attachment.link
        if self._resuming is not None and not self._resuming.done():
            self._to_interrupt.add(run)
        if not link.lost:
            link.send(Interrupt("", (), run))
            if link.host is not None and link.host.is_away:
                text = f"run {run} is interrupted as soon as the connection to {link.host.name} is back"
                self._attachment.notify(Notice(text))

    def handle(self, message: Message) -> None:
        """Pass a message on to its run, and the end of the cluster to every run that is not over."""
        match message:
            case RunAccepted(request) if request in self._submitted:  # the run exists before its first output arrives
                ranks, topology = self._submitted[request], self._attachment.facts.topology
                self._add(request, CellRun(message.run, ranks, topology, self._interrupter()))
            case RunFollowed(request) if request in self._to_follow and message.run not in self._runs:
                self._others.add(message.run)
                self._add(request, CellRun.followed(message, self._attachment.facts.topology, self._interrupter()))
            case RunFollowed(request):
                if request in self._to_follow:
                    self._accepted[request] = self._runs[message.run]
            case RunAccepted():  # its submitter has stopped waiting
                self.interrupt_now(message.run)
            case RunRecord(request):
                if request in self._to_resume:
                    self._feed_later(message)
            case Stopped() if self._resuming is not None and not self._resuming.done():
                pass  # it sees that by itself
            case Stopped() if self._runs and self._attachment.link.may_be_replaced:
                self._resuming = asyncio.ensure_future(self._resume(self._attachment.link, message))
            case Stopped():
                self._end(message)
            case _:
                self._feed(getattr(message, "run", 0), message)

    async def _resume(self, lost: Link, stopped: Stopped) -> None:
        """Go on with the runs on the link that replaces this one; those that its controller does not know end."""
        while True:
            try:
                link = await lost.current()
                for number in list(self._runs):
                    await self._resume_run(number, link, stopped)
            except ConnectionLost as e:
                newest = self._attachment.link
                if newest is not lost and newest.may_be_replaced:  # its controller has died as well
                    lost = newest
                    continue
                self._end(msgspec.structs.replace(stopped, reason=newest.lost or e.message))
            self._to_interrupt.clear()
            return

    async def _resume_run(self, number: int, link: Link, stopped: Stopped) -> None:
        """Raises ConnectionLost."""
        run, request = self._runs[number], new_request()
        self._to_resume.add(request)
        try:
            waiter = run.waiter(is_owner=number not in self._others)
            await link.request(ReadRun(request, number, waiter), RunRecord)
        except UsageError:  # it ended just then, or had not begun
            self._feed(number, stopped)
        finally:
            self._to_resume.discard(request)
        if number in self._to_interrupt:
            self.interrupt_now(number)

    def _feed_later(self, record: RunRecord) -> None:
        """Tell a run what has been recorded since its loss."""
        run = self._runs[record.run]
        is_known = (Notice,) if run.state == "queued" else (Notice, RunStarted)
        for each in record.messages:
            if not isinstance(each, is_known) and not (isinstance(each, RankDone) and each.rank in run.outcomes):
                self._feed(record.run, each)

    def _end(self, stopped: Stopped) -> None:
        for number in list(self._runs):
            self._feed(number, stopped)

    def _interrupter(self) -> Callable[[int], object]:
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        return lambda number: call_soon(self.interrupt_now, number)

    def _add(self, request: str, run: CellRun) -> None:
        self._runs[run.number] = self._accepted[request] = run

    def _feed(self, number: int, message: Message) -> None:
        run = self._runs.get(number) or self._ended.get(number)
        if run is None:
            return
        run.feed(message)
        if isinstance(message, MetricsLogged):
            self._attachment.metrics.keep(run.logged)
        if run.is_done:
            self._runs.pop(number, None)
            self._others.discard(number)
            self._ended[number] = run


def script_cell(path: str, args: Sequence[str] = (), *, in_job: bool = False) -> str:
    """A cell that runs the script at ``path`` as ``__main__``. Raises UsageError when it is not there."""
    script = Path(path).expanduser()
    if not script.is_file():
        raise UsageError(f"there is no script {path!r} here ({Path.cwd()})")
    return run_script(str(script.resolve()), args, in_job=in_job)
