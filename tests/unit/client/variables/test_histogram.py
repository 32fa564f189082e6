"""The bins that ranks have in common: their ends, their number, and that no value is outside."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.client.variables.variables import Bins, common_bins, histogram_of
from jdist.core.messages.values import BinnedElements


def described(*ends: tuple[float, float] | None, dtype: str = "float32") -> dict[int, dict[str, Any]]:
    return {rank: {"dtype": dtype, "finite": each} for rank, each in enumerate(ends)}


def test_they_hold_the_values_of_all_ranks() -> None:
    assert common_bins(described((0.0, 1.0), None, (-3.0, 0.5))) == Bins(-3.0, 1.0, 32)
    assert common_bins({0: {"error": "there is no name"}, 1: {"dtype": "float32", "finite": (0.0, 2.0)}}) == Bins(
        0, 2, 32
    )
    assert common_bins(described(None, None)) is None
    assert common_bins({}) is None


def test_of_whole_numbers_each_bin_has_as_many() -> None:
    assert common_bins(described((0, 6), (2, 9), dtype="int64")) == Bins(-0.5, 9.5, 10)
    assert common_bins(described((False, True), dtype="bool")) == Bins(-0.5, 1.5, 2)
    assert common_bins(described((0, 49), dtype="uint8")) == Bins(-0.5, 49.5, 25)
    assert common_bins(described((0, 2**60), dtype="int64")) == Bins(0, 2**60, 32), "a float cannot tell them apart"


@pytest.mark.parametrize("value", [0.0, -3.0, 1e300, sys.float_info.max, -sys.float_info.max, 5e-324])
def test_values_that_are_all_equal_are_inside(value: float) -> None:
    bins = common_bins(described((value, value)))
    assert bins is not None
    assert bins.low < value < bins.high or abs(value) == sys.float_info.max
    assert bins.low < bins.high


@given(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False)))
def test_any_ends(ends: tuple[float, float]) -> None:
    low, high = min(ends), max(ends)
    bins = common_bins(described((low, high)))
    assert bins is not None
    assert bins.low <= low <= high <= bins.high
    assert math.isfinite(bins.low)
    assert math.isfinite(bins.high)
    assert bins.low < bins.high


def test_what_is_told() -> None:
    told = histogram_of(Bins(0.0, 1.0, 2), BinnedElements((3, 4), nan=1))
    assert told == {
        "low": 0.0,
        "high": 1.0,
        "counts": [3, 4],
        "nan": 1,
        "negative_infinity": 0,
        "positive_infinity": 0,
        "outside": 0,
    }
