"""Agreement: what the ranks of a group must call alike under one number. Pure."""

from __future__ import annotations

import math

from jdist.core.observation import Call

SAME_SIZE = {"all_reduce", "broadcast", "reduce", "all_gather", "gather", "reduce_scatter"}
SAME_SIZE |= {"all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"}
SAME_SIZE |= {"_all_gather_base", "_reduce_scatter_base", "allreduce", "allgather"}
"""Collectives to which every rank brings a tensor of the same dtype and number of elements."""
_MAY_BE_UNEVEN = {"all_gather"}
"""NCCL takes tensors of other sizes there; where a backend does not, the call fails or is waited in."""


def call_signature(call: Call) -> str:
    """The part of a call in which ranks that have all returned from it must not differ: equal text, equal call."""
    parts = [call.op]
    if call.op in SAME_SIZE and call.shapes:
        parts.append(" ".join(call.dtypes))
        if call.op not in _MAY_BE_UNEVEN:
            parts.append(str(sizes(call)))
    parts.append(call.detail.partition("splits=")[0].strip())
    return " ".join(filter(None, parts))


def sizes(call: Call) -> tuple[int, ...]:
    """Elements of each of its tensors."""
    return tuple(math.prod(shape) for shape in call.shapes)
