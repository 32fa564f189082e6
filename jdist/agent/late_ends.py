"""Late ends: ends of cells that do not arrive, although their ranks have gone on.

A cell's end travels among its output, which it must not overtake, and passes everything that can go wrong with output.
Beside it, the worker says on its own socket that the cell is over. Where nothing of the worker's output arrives any
more after that, and the end was not among it, the end is lost, and an error takes its place::

    said ──output arrives──► said again ──the end arrives──► forgotten
      └──────── no output for _QUIET looks ────────► an error is the end

The time is counted in looks, not by the clock: an agent that was stopped itself has first to read what has come.
"""

import asyncio
from collections.abc import Callable

from jdist.core.messages.runs import CellEnded, RankDone
from jdist.core.outcome import ErrorInfo

_LOOK = 0.25  # Seconds between two looks.
_QUIET = 8  # Looks without output after which the end is lost.


class LateEnds:
    """``is_due(worker, run)``: whether the end has not arrived. ``report`` is called with what takes its place."""

    def __init__(self, is_due: Callable[[int, int], bool], report: Callable[[RankDone], None]):
        self._is_due = is_due
        self._report = report
        self._quiet: dict[tuple[int, int], int] = {}  # Looks since the last output, by worker and run.
        self._timer: asyncio.TimerHandle | None = None

    def handle_cell_ended(self, message: CellEnded) -> None:
        if self._is_due(message.worker, message.run):
            self._quiet[message.worker, message.run] = 0
            self._look_later()

    def record_output(self, worker: int) -> None:
        """Something of the worker's output has arrived, so that its end may be among what follows."""
        for waiting in [key for key in self._quiet if key[0] == worker]:
            self._quiet[waiting] = 0

    def _look_later(self) -> None:
        if self._timer is None and self._quiet:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._timer = None
        for (worker, run), quiet in list(self._quiet.items()):
            self._quiet[worker, run] = quiet + 1
            if not self._is_due(worker, run) or quiet >= _QUIET:
                del self._quiet[worker, run]
            if self._is_due(worker, run) and quiet >= _QUIET:
                text = "the cell is over, but how it ended did not arrive; every name is kept"
                self._report(RankDone(run, worker, "error", error=ErrorInfo("NotReported", text)))
        self._look_later()
