"""Histograms of elements on a rank: which bin an element is in, what is in none, and tensors that are sampled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.core.errors import UsageError
from jdist.worker.variables import describe as describing
from jdist.worker.variables.describe import bin_elements, describe


@given(st.lists(st.integers(-20, 20), max_size=60), st.integers(1, 9), st.integers(-5, 5), st.integers(1, 12))
@settings(deadline=None)
def test_the_counts_are_numpys(values: list[int], bins: int, low: int, width: int) -> None:
    tensor = torch.tensor(values, dtype=torch.float32) / 4
    high = low + bins * width / 8  # edges that floats have exactly
    found = bin_elements(tensor, low, high, bins)
    expected, _ = np.histogram(tensor.numpy(), bins, (low, high))
    assert list(found.counts) == expected.tolist()
    assert found.outside == len(values) - sum(found.counts)


def test_what_is_no_number_is_counted_apart() -> None:
    tensor = torch.tensor([math.nan, math.inf, math.inf, -math.inf, 0.0, 1.0, 1.5, -0.5])
    found = bin_elements(tensor, 0.0, 1.0, 2)
    assert found.counts == (1, 1)
    assert (found.nan, found.positive_infinity, found.negative_infinity, found.outside) == (1, 2, 1, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool], ids=str)
def test_elements_of_every_kind(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1], [1, 1]]).to(dtype).t()
    assert bin_elements(tensor, -0.5, 1.5, 2).counts == (1, 3)


@pytest.mark.parametrize(
    "array", [np.array([3, 1, 2, 2]), np.array([3, 1, 2, 2])[::-1], np.broadcast_to(np.array([1, 2, 2, 3]), (1, 4))]
)
def test_elements_of_an_array(array: Any) -> None:
    assert bin_elements(array, 0.5, 3.5, 3).counts == (1, 2, 1)


def test_ends_whose_difference_is_no_float() -> None:
    tensor = torch.tensor([-1.7e308, -1e307, 0.0, 1.7e308], dtype=torch.float64)
    assert bin_elements(tensor, -1.7e308, 1.7e308, 4).counts == (1, 1, 1, 1)


def test_of_a_very_large_tensor_a_sample_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "CHUNK", 10)
    monkeypatch.setattr(describing, "_EXACT", 40)
    tensor = torch.arange(1000.0)
    assert bin_elements(tensor, 0.0, 1000.0, 4).counts == (10, 10, 10, 10)
    assert describe(tensor).finite == (0.0, 999.0)


@pytest.mark.parametrize("value", [[1, 2], torch.tensor([1j, 2]), torch.empty(5, device="meta"), "text"])
def test_what_has_no_histogram(value: Any) -> None:
    with pytest.raises(UsageError, match="have no histogram on this rank"):
        bin_elements(value, 0.0, 1.0, 4)


@pytest.mark.parametrize(
    ("low", "high", "bins"), [(1, 1, 4), (0, math.inf, 4), (math.nan, 1, 4), (0, 1, 0), (0, 1, 10**9)]
)
def test_bins_that_cannot_be_made(low: float, high: float, bins: int) -> None:
    with pytest.raises(UsageError, match="no histogram has"):
        bin_elements(torch.ones(2), low, high, bins)


def test_a_description_has_the_ends_of_what_is_finite() -> None:
    assert describe(torch.tensor([2.0, math.nan, -3.0])).finite == (-3.0, 2.0)
    assert describe(torch.tensor([2.0, -math.inf, math.inf, 5.0])).finite == (2.0, 5.0)
    assert describe(torch.tensor([math.inf, math.nan])).finite is None
    assert describe(torch.tensor(3.0)).finite is None, "one element has no distribution"
    assert describe(torch.tensor([1j, 2j])).finite is None
    assert describe(np.arange(5)).finite == (0, 4)
