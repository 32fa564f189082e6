"""Histogram of a value over the ranks: bins that all of them have in common, and how many elements each has there."""

import math
import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from jdist.core.messages.values import BinnedElements

_BINS = 32
_EXACT = 2.0**52  # Whole numbers up to which a float tells each from the next.


class Bins(Struct, frozen=True):
    """Bins of equal width from ``low`` to ``high``."""

    low: float
    high: float
    count: int


def common_bins(found: Mapping[int, Mapping[str, Any]]) -> Bins | None:
    """Bins for the values that ``found`` describes by rank; None if none has elements that can be ordered.

    Of whole numbers, each bin has as many as every other.
    """
    described = [each for each in found.values() if each.get("finite")]
    if not described:
        return None
    low = min(each["finite"][0] for each in described)
    high = max(each["finite"][1] for each in described)
    is_whole = all(each["dtype"].startswith(("int", "uint", "bool")) for each in described)
    if is_whole and max(abs(low), abs(high)) < _EXACT:
        width = math.ceil((high - low + 1) / _BINS)
        count = math.ceil((high - low + 1) / width)
        return Bins(low - 0.5, low - 0.5 + count * width, count)
    if high / _BINS - low / _BINS < sys.float_info.min:  # all are equal, or nearly
        pad = max(0.5, abs(low) / 1024)
        low, high = max(low - pad, -sys.float_info.max), min(high + pad, sys.float_info.max)
    return Bins(low, high, _BINS)


def histogram_of(bins: Bins, binned: BinnedElements) -> dict[str, Any]:
    """``{"low", "high", "counts", "nan", "negative_infinity", "positive_infinity", "outside"}``."""
    return {"low": bins.low, "high": bins.high, **asdict(binned), "counts": list(binned.counts)}
