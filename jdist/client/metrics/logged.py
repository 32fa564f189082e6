"""Logged: the numbers that the ranks of a run have logged, as a table for users, and the ranks to look at."""

import csv
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from msgspec import Struct

from jdist.core.errors import UsageError
from jdist.core.metrics import MetricSeries, RunMetrics
from jdist.core.ranks import describe_ranks, ranks_by


class PointTable:
    """A table of points, a row each: iterate over it, or take it by column."""

    COLUMNS: ClassVar[tuple[str, ...]]
    NAME: ClassVar[str]  # What the table holds, for messages: "metrics".

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The table as a list for each of its columns."""
        rows = list(self)
        found = zip(*rows, strict=True) if rows else ([] for _ in self.COLUMNS)
        return dict(zip(self.COLUMNS, map(list, found), strict=True))

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        try:
            import pandas as pd
        except ImportError:
            raise UsageError("pandas is not installed here; `columns` has the same table in lists") from None
        return pd.DataFrame(self.columns)

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as a CSV file with a head. Raises UsageError if it cannot be written."""
        target = Path(path).expanduser()
        try:
            with target.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(self.COLUMNS)
                writer.writerows(self)
        except OSError as e:
            raise UsageError(f"the {self.NAME} cannot be written to {target}: {e.strerror or e}") from None
        return target


Row = tuple[int, int, str, float, float]  # Step, rank, name, value, time.
_LEAST_RANKS = 3  # Of two ranks that differ, neither is the one to look at.
_RECENT = 20  # Newest points of a rank whose mean is compared.
_FAR = 6.0  # Times the ranks' median distance from the median, scaled as for a normal distribution.
_FAR_SHARE = 0.2  # And at least this share of the median's size.
_NORMAL = 1.4826
_BEHIND = 10  # Steps, and at least the next share of the steps that the others have made.
_BEHIND_SHARE = 0.1

_Ranks = Mapping[int, MetricSeries]
_Find = Callable[[_Ranks], Iterator[tuple[int, str]]]  # Ranks, and what is to be said of each.


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


# ---------------------------------------------------------------- ranks to look at


class MetricMark(Struct, frozen=True):
    """Ranks that stand out in one metric."""

    ranks: tuple[int, ...]
    name: str
    what: str  # "is NaN since step 120"

    @property
    def text(self) -> str:
        """``rank 3: loss is NaN since step 120``."""
        return f"{describe_ranks(self.ranks)}: {self.name} {self.what}"


def marks(series: Mapping[str, _Ranks]) -> list[MetricMark]:
    """Numbers that are not finite first, then ranks that are far from the others, then those that are behind."""
    found = [*_marks(series, _nonfinite), *_marks(series, _far), *_marks(series, _behind)]
    return list(dict.fromkeys(found))


def _marks(series: Mapping[str, _Ranks], find: _Find) -> Iterator[MetricMark]:
    for name, ranks in series.items():
        for what, who in ranks_by(find(ranks)).items():
            yield MetricMark(tuple(who), name, what)


def _nonfinite(ranks: _Ranks) -> Iterator[tuple[int, str]]:
    for rank, series in ranks.items():
        step, value, _ = series.newest
        if series.nonfinite_since is not None:
            since = "at" if series.nonfinite_since == step else "since"
            yield rank, f"is {format_number(value)} {since} step {series.nonfinite_since:,}"
        elif series.nonfinite == 1:
            yield rank, f"was NaN or infinite at step {series.first_nonfinite:,}"
        elif series.nonfinite:
            times, first = f"{series.nonfinite:,} times", f"first at step {series.first_nonfinite:,}"
            yield rank, f"was NaN or infinite {times}, {first}"


def _far(ranks: _Ranks) -> Iterator[tuple[int, str]]:
    recent = {rank: mean for rank, series in ranks.items() if (mean := _recent(series)) is not None}
    if len(recent) < _LEAST_RANKS:
        return
    middle = median(recent.values())
    spread = median(abs(mean - middle) for mean in recent.values()) * _NORMAL
    limit = max(_FAR * spread, _FAR_SHARE * abs(middle))
    for rank, mean in recent.items():
        if abs(mean - middle) > limit:
            yield rank, f"is {format_number(mean)}, far from the other ranks' {format_number(middle)}"


def _recent(series: MetricSeries) -> float | None:
    """The mean of the newest points; None if one of them is not finite."""
    values: Sequence[float] = series.values[-_RECENT:] or (series.newest[1],)  # noqa: PD011 — no pandas
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) and series.nonfinite_since is None else None


def _behind(ranks: _Ranks) -> Iterator[tuple[int, str]]:
    if len(ranks) < 2:
        return
    newest = {rank: series.newest[0] for rank, series in ranks.items()}
    first = min(min(series.steps, default=series.newest[0]) for series in ranks.values())
    others = median(newest.values()) if len(ranks) >= _LEAST_RANKS else max(newest.values())
    limit = max(_BEHIND, _BEHIND_SHARE * (others - first))
    for rank, step in newest.items():
        if others - step > limit:
            yield rank, f"is at step {step:,}, {others - step:,.0f} behind the other ranks"


def format_number(value: float) -> str:
    """Four digits; ``NaN``, ``inf``, ``-inf``."""
    return "NaN" if math.isnan(value) else f"{value:.4g}"
