"""Metrics: the numbers that the ranks of a run have logged, as a table for users."""

from collections.abc import Iterator
from typing import Any, ClassVar

from jdist.client.point_table import PointTable
from jdist.core.errors import UsageError
from jdist.core.metrics.series import RunMetrics

Row = tuple[int, int, str, float, float]


class Metrics(PointTable):
    """What the ranks of a run have logged with ``jdist.log`` up to now; notebooks draw it.

    ``for step, rank, name, value, time in metrics`` goes through the points, by name and rank in the order in which
    they were logged. Of more than 10,000 points of a name on a rank, every second, fourth, … is kept. ``time`` is in
    seconds of the rank's wall clock since 1970.
    """

    COLUMNS: ClassVar = ("step", "rank", "name", "value", "time")
    NAME: ClassVar = "metrics"

    def __init__(self, logged: RunMetrics) -> None:
        self.run = logged.run
        """The run's number."""
        self._series = logged.snapshot()

    @property
    def names(self) -> list[str]:
        """The names, in the order in which they were logged first."""
        return list(self._series)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have logged something."""
        return sorted({rank for ranks in self._series.values() for rank in ranks})

    @property
    def marks(self) -> list[str]:
        """The ranks to look at, in words: with numbers that are not finite, far from the others', or behind them."""
        from jdist.client.metrics.marks import marks

        return [mark.text for mark in marks(self._series)]

    def __iter__(self) -> Iterator[Row]:
        for name, ranks in self._series.items():
            for rank, series in ranks.items():
                for step, value, time in zip(series.steps, series.values, series.times, strict=True):
                    yield step, rank, name, value, time

    def __len__(self) -> int:
        return sum(len(series.steps) for ranks in self._series.values() for series in ranks.values())

    def __repr__(self) -> str:
        text: str = self._chart().text()
        return text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        del include, exclude
        return self.bundle()

    def bundle(self) -> dict[str, Any]:
        """The chart by mime type."""
        found: dict[str, Any] = self._chart().bundle()
        return found

    def _chart(self) -> Any:
        from jdist.client.metrics.chart import MetricChart  # only here: it imports numpy

        return MetricChart(self.run, self._series)


class KeptMetrics:
    """The newest runs of a client in which something was logged."""

    _MOST = 20

    def __init__(self) -> None:
        self._runs: dict[int, RunMetrics] = {}

    def keep(self, logged: RunMetrics) -> None:
        """Keep a run's metrics, in place of the oldest run's."""
        self._runs.setdefault(logged.run, logged)
        while len(self._runs) > self._MOST:
            del self._runs[min(self._runs)]

    def find(self, run: int) -> RunMetrics:
        """Those of a run (0: of the newest). Raises UsageError if there are none."""
        kept = dict(self._runs)
        if run == 0 and kept:
            return kept[max(kept)]
        if run not in kept:
            what = f"in run {run}" if run else "yet"
            which = f"; there are metrics of run {', '.join(map(str, sorted(kept)))}" if kept else ""
            text = f"nothing was logged {what} in a cell of this client{which}"
            raise UsageError(f"{text}; call jdist.log(loss=…) in a cell on the ranks")
        return kept[run]
