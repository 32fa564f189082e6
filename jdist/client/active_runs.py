"""Underway: the runs that a client has submitted, from the request on, each fed what the controller says of it."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterator

from jdist.client.run import CellRun
from jdist.core.messages.base import Message
from jdist.core.messages.observation import VerdictChanged
from jdist.core.messages.output import Output
from jdist.core.messages.runs import InputRequest, RankDone, RunAccepted, RunEnded, RunStarted
from jdist.core.messages.status import Notice, Stopped
from jdist.core.topology import Topology


class Underway:
    """A client's runs by number. ``interrupt`` sends a run's interrupt off; it is called on the link's loop."""

    def __init__(self, topology: Callable[[], Topology], interrupt: Callable[[int], None]) -> None:
        self._topology = topology
        self._interrupt = interrupt
        self._runs: dict[int, CellRun] = {}
        self._ended: weakref.WeakValueDictionary[int, CellRun] = weakref.WeakValueDictionary()
        """Runs that are over, as long as somebody holds them: their threads may still say something."""
        self._submitted: dict[str, tuple[int, ...]] = {}
        """Ranks of the cells that the controller has not accepted yet, by request."""
        self._accepted: dict[int, CellRun] = {}
        """Runs on their way to who submitted them."""

    @contextlib.contextmanager
    def awaiting(self, request: str, ranks: tuple[int, ...]) -> Iterator[None]:
        """While somebody waits for the cell of ``request`` to be accepted; accepted later, it is interrupted."""
        self._submitted[request] = ranks
        try:
            yield
        finally:
            self._submitted.pop(request, None)

    def take(self, accepted: RunAccepted) -> CellRun:
        """The run that was accepted, for who submitted it."""
        run = self._accepted.pop(accepted.run)
        run.behind = accepted.behind
        return run

    def hear(self, message: Message) -> None:
        """What is said of a run reaches it; that the cluster has stopped reaches all that are not over."""
        match message:
            case RunAccepted():
                self._accept(message)
            case (
                RunStarted(number)
                | Output(number)
                | RankDone(number)
                | RunEnded(number)
                | InputRequest(number)
                | VerdictChanged(number)
            ):
                self._feed(number, message)
            case Notice() if message.run:
                self._feed(message.run, message)
            case Stopped():
                for number in list(self._runs):
                    self._feed(number, message)

    def _accept(self, accepted: RunAccepted) -> None:
        """The run exists before its first output arrives; one that nobody waits for any more is not to go on."""
        ranks = self._submitted.get(accepted.request)
        if ranks is None:
            self._interrupt(accepted.run)
            return
        loop = asyncio.get_running_loop()

        def cancel(number: int) -> None:
            loop.call_soon_threadsafe(self._interrupt, number)

        run = CellRun(accepted.run, ranks, self._topology(), cancel)
        self._runs[run.number] = self._accepted[run.number] = run

    def _feed(self, number: int, message: Message) -> None:
        run = self._runs.get(number) or self._ended.get(number)
        if run is None:
            return
        run.feed(message)
        if run.is_done:
            self._runs.pop(number, None)
            self._ended[number] = run
