"""The chart of a run's metrics: as text, as HTML with pictures, and as data for a front end that draws it. Pure.

The data, ``application/vnd.jdist.metrics.v1+json``, has one chart for each of the first names. A front end that meets
another ``version`` shows the HTML beside it. Numbers that are missing are null, others that JSON lacks are texts.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from jdist.client.measure.pictures import sparkline
from jdist.client.metrics.lines import MetricLines, Numbers, lines, rounded
from jdist.client.metrics.marks import format_number, marks
from jdist.core.metrics.series import MetricSeries
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

_HEADS = ("name", "step", "mean", "lowest", "highest", "ranks")


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
