"""The chart of a run's metrics: as text, as HTML with pictures, and as data for a front end that draws it. Pure.

The data, ``application/vnd.jdist.metrics.v1+json``, has one chart for each of the first names. A front end that meets
another ``version`` shows the HTML beside it. Numbers that are missing are null, others that JSON lacks are texts.

Of more steps than the chart has room for, neighbours are put together: the mean is over them, and the lowest and the
highest number remain what they are.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from jdist.client.metrics.logged import format_number, marks
from jdist.client.metrics.pictures import sparkline
from jdist.core.metrics import MetricSeries
from jdist.core.quantities import format_count
from jdist.core.table import Table

MIME = "application/vnd.jdist.metrics.v1+json"
VERSION = 1

_MOST_CHARTS = 12
_MOST_ROWS = 40
_MOST_RANKS = 64  # Ranks of which a line of their own is sent.
_MOST_NUMBERS = 20_000  # In all charts: about 170 kB.
_MOST_STEPS, _LEAST_STEPS = 500, 40
_MOST_MARKS = 20
_SPARK_STEPS = 100
_EXACT = 22  # Powers of ten up to this one are exact as floats.

_HEADS = ("name", "step", "mean", "lowest", "highest", "ranks")

Numbers = npt.NDArray[np.float64]


class MetricLines(Struct, frozen=True):
    """All have as many entries as ``steps``. NaN stands where no rank has a finite number."""

    steps: npt.NDArray[np.int64]  # Of each group of neighbouring steps, the last.
    mean: Numbers
    low: Numbers
    high: Numbers
    by_rank: dict[int, Numbers]  # NaN where the rank has none, or one that is NaN; inf where it is infinite.
    is_nan: dict[int, npt.NDArray[np.bool_]]  # Where the rank has logged NaN, and no number.
    width: int  # How many steps are put together, at most.


def lines(ranks: Mapping[int, MetricSeries], most: int) -> MetricLines:
    """The lines of one name with at most ``most`` entries."""
    steps = {rank: np.frombuffer(series.steps, np.int64) for rank, series in ranks.items()}
    values = {rank: np.frombuffer(series.values, np.float64) for rank, series in ranks.items()}
    for rank, series in ranks.items():
        step, value, _ = series.newest
        if not len(steps[rank]) or steps[rank][-1] != step:  # the newest is shown, whatever the stride leaves out
            steps[rank], values[rank] = np.append(steps[rank], step), np.append(values[rank], value)
    all_steps = np.unique(np.concatenate(list(steps.values())))
    width = -(-len(all_steps) // most)
    shown = np.unique(np.append(all_steps[width - 1 :: width], all_steps[-1]))
    size = len(shown)
    total, count = np.zeros(size), np.zeros(size)
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    by_rank, is_nan = {}, {}
    for rank in ranks:
        place, own = np.searchsorted(shown, steps[rank]), values[rank]
        is_finite = np.isfinite(own)
        at, finite = place[is_finite], own[is_finite]
        sums, counts = np.bincount(at, finite, size), np.bincount(at, minlength=size)
        np.minimum.at(low, at, finite)
        np.maximum.at(high, at, finite)
        by_rank[rank] = _divided(sums, counts)
        infinite = np.isinf(own)
        by_rank[rank][place[infinite]] = own[infinite]
        has_nan = np.zeros(size, np.bool_)
        has_nan[place[np.isnan(own)]] = True
        by_rank[rank][has_nan] = np.nan
        is_nan[rank] = has_nan
        mean = _divided(sums, counts)
        has = counts > 0
        total[has] += mean[has]
        count += has
    has_none = count == 0
    low[has_none] = high[has_none] = np.nan
    return MetricLines(shown, _divided(total, count), low, high, by_rank, is_nan, width)


def _divided(sums: Any, counts: Any) -> Numbers:
    """NaN where there is nothing to divide by."""
    found: Numbers = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return found


def rounded(numbers: Numbers, digits: int = 5) -> Numbers:
    """Rounded to so many digits, so that they are short as text."""
    found = numbers.copy()
    usable = np.isfinite(numbers) & (numbers != 0)
    power = np.zeros(len(numbers), int)
    power[usable] = digits - 1 - np.floor(np.log10(np.abs(numbers[usable])))
    is_exact = usable & (np.abs(power) <= _EXACT)
    some, scale = numbers[is_exact], 10.0 ** np.abs(power[is_exact])
    found[is_exact] = np.where(power[is_exact] >= 0, np.round(some * scale) / scale, np.round(some / scale) * scale)
    for place in (usable & ~is_exact).nonzero()[0]:
        found[place] = float(f"{numbers[place]:.{digits}g}")
    return found


class MetricSummary(Struct, frozen=True):
    """The newest numbers of one name over its ranks; NaN if no rank's is finite."""

    name: str
    step: int
    mean: float
    low: float
    high: float
    ranks: int

    @classmethod
    def of(cls, name: str, ranks: Mapping[int, MetricSeries]) -> "MetricSummary":
        """The summary of a name that at least one rank has logged."""
        newest = [value for series in ranks.values() if math.isfinite(value := series.newest[1])]
        mean = math.fsum(newest) / len(newest) if newest else math.nan
        step = max(series.newest[0] for series in ranks.values())
        return cls(name, step, mean, min(newest, default=math.nan), max(newest, default=math.nan), len(ranks))

    @property
    def texts(self) -> tuple[str, ...]:
        """A row of the table."""
        numbers = (format_number(number) for number in (self.mean, self.low, self.high))
        return self.name, f"{self.step:,}", *numbers, str(self.ranks)


class MetricChart:
    """What a run's ranks have logged up to one moment, ready to be shown."""

    def __init__(self, run: int, series: Mapping[str, Mapping[int, MetricSeries]]) -> None:
        self._run = run
        self._series = series
        self.marks = marks(series)
        self.summaries = [MetricSummary.of(name, ranks) for name, ranks in series.items()]

    @property
    def headline(self) -> str:
        """``metrics of run 3 · 2 names · 4 ranks · 800 points``."""
        ranks = {rank for found in self._series.values() for rank in found}
        points = sum(series.count for found in self._series.values() for series in found.values())
        names, count = format_count(len(self._series), "name"), format_count(len(ranks), "rank")
        return f"metrics of run {self._run} · {names} · {count} · {points:,} points"

    def bundle(self) -> dict[str, Any]:
        """The chart by mime type."""
        return {"text/plain": self.text(), "text/html": self.html(), MIME: self.data()}

    # ------------------------------------------------------------ text

    @property
    def mark_texts(self) -> list[str]:
        """The marks in words."""
        return _first([mark.text for mark in self.marks], _MOST_MARKS, "mark")

    @property
    def table(self) -> Table:
        """The newest numbers, a row for each of the first names."""
        more = len(self.summaries) - _MOST_ROWS
        rows = (summary.texts for summary in self.summaries[:_MOST_ROWS])
        return Table.of(_HEADS, rows, [f"… {more} more names"] if more > 0 else [])

    def text(self) -> str:
        """The newest numbers as a table, and the marks."""
        return "\n".join((self.headline, self.table.text(), *(f"! {text}" for text in self.mark_texts)))

    # ------------------------------------------------------------ HTML

    def html(self) -> str:
        """The same as HTML, with a small picture of each of the first names."""
        first = self.summaries[:_MOST_CHARTS]
        drawn = (lines(self._series[summary.name], _SPARK_STEPS) for summary in first)
        pictures = [sparkline(*(a.tolist() for a in (each.steps, each.mean, each.low, each.high))) for each in drawn]
        marked = "".join(f"<div><strong>! {html.escape(text)}</strong></div>" for text in self.mark_texts)
        return f"<div><div>{html.escape(self.headline)}</div>{self.table.html(pictures)}{marked}</div>"

    # ------------------------------------------------------------ data

    def data(self) -> dict[str, Any]:
        """The charts for JSON."""
        names = list(self._series)[:_MOST_CHARTS]
        room = _MOST_NUMBERS // max(1, len(names))
        return {
            "version": VERSION,
            "run": self._run,
            "headline": self.headline,
            "charts": [self._chart(name, room) for name in names],
            **self.table.json(),
            "marks": self.mark_texts,
            "more": max(0, len(self._series) - _MOST_ROWS),
        }

    def _chart(self, name: str, room: int) -> dict[str, Any]:
        ranks = self._series[name]
        marked = {rank for mark in self.marks if mark.name == name for rank in mark.ranks}
        shown = _to_show(ranks, marked, min(_MOST_RANKS, room // _LEAST_STEPS - 4))
        found = lines(ranks, max(_LEAST_STEPS, min(_MOST_STEPS, room // (len(shown) + 4))))
        return {
            "name": name,
            "steps": found.steps.tolist(),
            "mean": _texts(found.mean),
            "low": _texts(found.low),
            "high": _texts(found.high),
            "ranks": [
                {"rank": rank, "values": _values(found, rank), **({"is_marked": True} if rank in marked else {})}
                for rank in shown
            ],
            "width": found.width,
            "count": len(ranks),
        }


def _to_show(ranks: Mapping[int, MetricSeries], marked: set[int], most: int) -> list[int]:
    """The ranks that get a line of their own: all, or those that are marked and those with the lowest and highest."""
    if len(ranks) <= most:
        return list(ranks)
    by_value = sorted(ranks, key=lambda rank: _sortable(ranks[rank].newest[1]))
    outermost = [rank for pair in zip(by_value, reversed(by_value), strict=True) for rank in pair]
    return sorted(list(dict.fromkeys([*sorted(marked), *outermost]))[:most])


def _sortable(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _texts(numbers: Numbers) -> list[float | str | None]:
    return [_text(number) for number in rounded(numbers).tolist()]


def _text(number: float) -> float | str | None:
    if math.isfinite(number):
        return number
    return None if math.isnan(number) else format_number(number)


def _values(found: MetricLines, rank: int) -> list[float | str | None]:
    values = _texts(found.by_rank[rank])
    for place in found.is_nan[rank].nonzero()[0].tolist():
        values[place] = "NaN"
    return values


def _first(texts: Sequence[str], most: int, what: str) -> list[str]:
    more = len(texts) - most
    return [*texts[:most], f"{format_count(more, f'more {what}')}"] if more > 0 else list(texts)
