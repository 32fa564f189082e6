"""Marks: the ranks whose numbers a user should look at, in words. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct

from jdist.core.metrics.series import MetricSeries
from jdist.core.ranks import describe_ranks, ranks_by

_LEAST_RANKS = 3  # Of two ranks that differ, neither is the one to look at.
_RECENT = 20  # Newest points of a rank whose mean is compared.
_FAR = 6.0  # Times the ranks' median distance from the median, scaled as for a normal distribution.
_FAR_SHARE = 0.2  # And at least this share of the median's size.
_NORMAL = 1.4826
_BEHIND = 10  # Steps, and at least the next share of the steps that the others have made.
_BEHIND_SHARE = 0.1

_Ranks = Mapping[int, MetricSeries]
_Find = Callable[[_Ranks], Iterator[tuple[int, str]]]  # Ranks, and what is to be said of each.


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
    values: Sequence[float] = series.values[-_RECENT:] or (series.newest[1],)
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
