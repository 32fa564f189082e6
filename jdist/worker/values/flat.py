"""A tensor's or array's elements in row-major order, piece by piece, without a copy of the whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

CHUNK = 1 << 17
"""Elements in a piece: few enough to stay in a core's cache, enough to hide what a call costs."""


def chunks(block: Any, start: int, stop: int, limit: int = CHUNK) -> Iterator[Any]:
    """1-D pieces of at most ``limit`` elements that together are the flat elements ``start`` to ``stop``.

    ``block`` is a strided tensor or an array. Pieces of a contiguous one are views; of any other, small copies.
    """
    shape = tuple(block.shape)
    if start >= stop:
        return
    if len(shape) <= 1 or _is_contiguous(block):
        flat = block.reshape(-1)
        for at in range(start, stop, limit):
            yield flat[at : min(at + limit, stop)]
        return
    row = math.prod(shape[1:])
    index = start // row
    while index * row < stop:
        low, high = max(start - index * row, 0), min(stop - index * row, row)
        rows = 1
        if low or high < row or row > limit:
            yield from chunks(block[index], low, high, limit)
        else:
            rows = min(limit // row, stop // row - index)
            yield block[index : index + rows].reshape(-1)
        index += rows


def _is_contiguous(block: Any) -> bool:
    return bool(block.is_contiguous() if hasattr(block, "is_contiguous") else block.flags.c_contiguous)
