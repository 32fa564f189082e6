"""Histogram of a value's elements, counted on the device on which they are: only the counts leave it."""

import math
from typing import Any

import torch

from jdist.core.errors import UsageError
from jdist.core.messages.values import BinnedElements
from jdist.worker.values.describe import elements_of, sample, widened

_MOST_BINS = 1024


def bin_elements(obj: Any, low: float, high: float, bins: int) -> BinnedElements:
    """Count the elements of a tensor or an array by bin. Raises UsageError if it has none that can be ordered."""
    if not (low < high and math.isfinite(low) and math.isfinite(high) and 0 < bins <= _MOST_BINS):
        raise UsageError(f"no histogram has {bins} bins from {low:g} to {high:g}")
    elements = elements_of(obj)
    if elements is None or elements.is_complex():
        raise UsageError(f"the elements of a {type(obj).__name__} have no histogram on this rank")
    counts = torch.zeros(bins + 4, dtype=torch.int64, device=elements.device)
    for chunk in sample(elements):
        counts += _count(widened(chunk), low, high, bins)
    *inside, outside, negative, positive, nan = counts.tolist()
    return BinnedElements(tuple(inside), nan, negative, positive, outside)


def _count(chunk: torch.Tensor, low: float, high: float, bins: int) -> torch.Tensor:
    """The counts of the bins, of what is outside, and of negative and positive infinities and NaN.

    Not by torch.histc, which refuses to run on a GPU while deterministic algorithms are asked for.
    """
    scale = 1.0 if math.isfinite(high - low) else 0.5  # the difference of the ends may be too large for a float
    width = (high * scale - low * scale) / bins
    place = (chunk * scale - low * scale).div_(width).floor_()
    place.masked_fill_((place >= bins) & (chunk <= high), bins - 1)
    place.masked_fill_((place < 0) | (place >= bins), bins)
    place.masked_fill_(chunk == -math.inf, bins + 1).masked_fill_(chunk == math.inf, bins + 2)
    place.masked_fill_(chunk.isnan(), bins + 3)
    return torch.bincount(place.long(), minlength=bins + 4)
