"""Doing: what a rank does now, and what it has of its GPU, in a few words. Pure."""

from __future__ import annotations

from jdist.core.messages.observation import Observation
from jdist.core.ranks import RankSet

_GIB = 1 << 30


def describe_doing(look: Observation) -> str:
    """``"all_reduce #17 of world at line 5, 3.2 s"``."""
    doing = look.doing
    if doing.kind == "silent":
        return f"does not answer: {doing.state}"
    call = doing.calls[0] if doing.calls else None
    labels = {g.name: g.label or f"ranks {RankSet(g.ranks)}" for g in look.groups}
    number = f" #{call.number} of {labels.get(call.group, call.group)}" if call is not None and call.number else ""
    line = f" at line {doing.line}" if doing.line else ""
    return f"{doing.op}{number}{line}, {doing.seconds:.1f} s"


def describe_gpu_memory(look: Observation) -> str:
    """``"1.2 of 141 GiB"``; "by all" where the driver tells only what everybody has; "" where there is no GPU."""
    gpu = look.gpu
    if gpu is None or not (gpu.total or gpu.own):
        return ""
    taken = (gpu.used if gpu.own is None else gpu.own) / _GIB
    total = f" of {gpu.total / _GIB:.0f}" if gpu.total else ""
    return f"{taken:.1f}{total} GiB{' by all' if gpu.own is None else ''}"


def describe_gpu_load(look: Observation) -> str:
    """``"97%"``; "" where it is not known."""
    return "" if look.gpu is None or look.gpu.busy is None else f"{look.gpu.busy:.0%}"
