"""Lines: a metric over ranks as a chart draws it: the mean, the lowest and the highest number at each step, and each
rank's own. Pure, and the one place that computes with NumPy.

Of more steps than the chart has room for, neighbours are put together: the mean is over them, and the lowest and the
highest number remain what they are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from jdist.core.metrics.series import MetricSeries

_EXACT = 22  # Powers of ten up to this one are exact as floats.

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
