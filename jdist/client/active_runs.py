"""Active runs: the cells that a client has submitted, each fed with the controller's messages about it."""

import asyncio
import weakref
from collections.abc import Callable

from jdist.client.attachment import Attachment
from jdist.client.link import new_request
from jdist.client.run import CellRun
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.debug import FollowRun, RunFollowed
from jdist.core.messages.runs import CellSpec, Interrupt, MetricsLogged, ReadRun, RunAccepted, RunCell, RunRecord
from jdist.core.messages.status import Stopped


class ActiveRuns:
    """A client's runs by number. All methods are called on the link's loop."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._runs: dict[int, CellRun] = {}
        # Runs that are over, while a caller holds them: threads of the cell may still write output.
        self._ended: weakref.WeakValueDictionary[int, CellRun] = weakref.WeakValueDictionary()
        self._submitted: dict[str, tuple[int, ...]] = {}  # Ranks of cells that wait to be accepted, by request.
        self._accepted: dict[str, CellRun] = {}  # Their runs, until the submitters take them; some end before that.
        self._to_follow: set[str] = set()  # Requests to follow a run.

    async def submit(self, cell: RunCell) -> CellRun:
        """Send a cell to the controller. Raises UsageError when it refuses the cell."""
        if cell.spec.timeout is not None and not cell.spec.timeout > 0:
            raise UsageError(f"a timeout is a positive number of seconds, not {cell.spec.timeout}")
        await self._attachment.send_import_path()
        paused = set(self._attachment.facts.paused)
        self._submitted[cell.request] = cell.ranks
        try:
            accepted = await self._attachment.link.request(cell, RunAccepted)
            run = self._accepted[cell.request]
        finally:
            self._submitted.pop(cell.request, None)
            self._accepted.pop(cell.request, None)
        run.behind = accepted.behind
        if not cell.spec.is_internal:
            facts, history = self._attachment.facts, self._attachment.history
            is_inner = cell.spec.in_failure or not paused.isdisjoint(cell.ranks)
            world_size = facts.topology.world_size
            history.add_cell(run, cell.spec.code, world_size, is_setup=cell.spec.is_setup, is_inner=is_inner)
        return run

    def __contains__(self, number: int) -> bool:
        return number in self._runs

    def get(self, number: int) -> CellRun | None:
        """A run that is not over; None if it is, or if this client does not follow it."""
        return self._runs.get(number)

    async def follow(self, number: int) -> CellRun:
        """The run of this number, which this client may not have begun. Raises UsageError if it is over or unknown."""
        if (known := self._runs.get(number)) is not None:
            return known
        request = new_request()
        self._to_follow.add(request)
        try:
            await self._attachment.link.request(FollowRun(request, number), RunFollowed)
            return self._accepted[request]
        finally:
            self._to_follow.discard(request)
            self._accepted.pop(request, None)

    async def read(self, number: int) -> CellRun:
        """The run of this number (0: the newest), as the controller has recorded it so far.

        Raises UsageError if it is not kept any more.
        """
        record = await self._attachment.link.request(ReadRun(new_request(), number), RunRecord)
        run = CellRun(record.run, record.ranks, self._attachment.facts.topology, self._interrupter())
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

    async def run_internal(self, code: str, *, check: bool = True) -> CellRun:
        """Run a cell of jdist's own on every rank and wait for it."""
        ranks = self._attachment.select()
        return await self.wait(
            await self.submit(RunCell(new_request(), CellSpec(code, is_internal=True), ranks)), check=check
        )

    def interrupt_now(self, run: int) -> None:
        """Send an interrupt without waiting for the answer. Does nothing once the cluster is lost."""
        if not self._attachment.link.lost:
            self._attachment.link.send(Interrupt("", (), run))

    def handle(self, message: Message) -> None:
        """Pass a message on to its run, and the end of the cluster to every run that is not over."""
        match message:
            case RunAccepted(request) if request in self._submitted:  # the run exists before its first output arrives
                ranks, topology = self._submitted[request], self._attachment.facts.topology
                self._add(request, CellRun(message.run, ranks, topology, self._interrupter()))
            case RunFollowed(request) if request in self._to_follow and message.run not in self._runs:
                self._add(request, CellRun.followed(message, self._attachment.facts.topology, self._interrupter()))
            case RunFollowed(request):
                if request in self._to_follow:
                    self._accepted[request] = self._runs[message.run]
            case RunAccepted():  # its submitter has stopped waiting
                self.interrupt_now(message.run)
            case Stopped():
                for number in list(self._runs):
                    self._feed(number, message)
            case _:
                self._feed(getattr(message, "run", 0), message)

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
            self._ended[number] = run
