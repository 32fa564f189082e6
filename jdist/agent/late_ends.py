"""Late ends: ends of cells that do not arrive, although their ranks have gone on.

A cell's end travels among its output, which it must not overtake, and passes everything that can go wrong with output.
Behind it, the worker says on its own socket that the cell is over. Where nothing of the worker's output arrives any
more after that, and the end was not among it, the end is lost, and an error takes its place::

    said ──output arrives──► said again ──the end arrives──► forgotten
      └── no output for _QUIET looks, or _LONGEST looks in all ──► an error is the end

The time is counted in looks, not by the clock: an agent that was stopped itself has first to read what has come.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from jdist.core.messages.runs import CellEnded, RankDone
from jdist.core.outcome import ErrorInfo

_LOOK = 0.25  # Seconds between two looks.
_QUIET = 8  # Looks without output after which the end is lost.
_LONGEST = 240  # Looks after which it is lost although output arrives, as from a thread that never stops writing.


@dataclass
class _Wait:
    """How long an end has been waited for, in looks."""

    quiet: int = 0
    looks: int = 0

    @property
    def is_over(self) -> bool:
        return self.quiet > _QUIET or self.looks > _LONGEST


class LateEnds:
    """``is_due(worker, run)``: whether the end has not arrived. ``report`` is called with what takes its place."""

    def __init__(self, is_due: Callable[[int, int], bool], report: Callable[[RankDone], None]):
        self._is_due = is_due
        self._report = report
        self._waits: dict[tuple[int, int], _Wait] = {}  # By worker and run.
        self._replaced: set[tuple[int, int]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def handle_cell_ended(self, message: CellEnded) -> None:
        if self._is_due(message.worker, message.run):
            self._waits[message.worker, message.run] = _Wait()
            self._look_later()

    def record_output(self, worker: int) -> None:
        """Something of the worker's output has arrived, so that its end may be among what follows."""
        for key, wait in self._waits.items():
            if key[0] == worker:
                wait.quiet = 0

    def take_replaced(self, done: RankDone) -> bool:
        """Whether an error has taken the place of an end that arrives after all."""
        if (done.rank, done.run) not in self._replaced:
            return False
        self._replaced.remove((done.rank, done.run))
        return True

    def _look_later(self) -> None:
        if self._timer is None and self._waits:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._timer = None
        for (worker, run), wait in list(self._waits.items()):
            wait.quiet += 1
            wait.looks += 1
            is_due = self._is_due(worker, run)
            if is_due and not wait.is_over:
                continue
            del self._waits[worker, run]
            if is_due:
                self._replaced.add((worker, run))
                text = "the cell is over, but how it ended did not arrive; every name is kept"
                self._report(RankDone(run, worker, "error", error=ErrorInfo("NotReported", text)))
        self._look_later()
