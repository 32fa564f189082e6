"""A rank's activity, its share of its GPU and the end of its previous process, each in a few words."""

from datetime import datetime, timedelta

from jdist.core.messages.observation import Observation
from jdist.core.messages.status import RankFacts
from jdist.core.ranks import RankSet

_GIB = 1 << 30


def describe_doing(seen: Observation) -> str:
    """``"all_reduce #17 of world at line 5, 3.2 s"``."""
    doing = seen.doing
    if doing.kind == "silent":
        return f"does not answer: {doing.state}"
    call = doing.calls[0] if doing.calls else None
    labels = {g.name: g.label or f"ranks {RankSet(g.ranks)}" for g in seen.groups}
    number = f" #{call.number} of {labels.get(call.group, call.group)}" if call is not None and call.number else ""
    line = f" at line {doing.line}" if doing.line else ""
    return f"{doing.op}{number}{line}, {doing.seconds:.1f} s"


def describe_gpu_memory(seen: Observation) -> str:
    """``"1.2 of 141 GiB"``; "by all" where the driver reports all processes' memory only; "" without a GPU."""
    gpu = seen.gpu
    if gpu is None or not (gpu.total or gpu.own):
        return ""
    taken = (gpu.used if gpu.own is None else gpu.own) / _GIB
    total = f" of {gpu.total / _GIB:.0f}" if gpu.total else ""
    return f"{taken:.1f}{total} GiB{' by all' if gpu.own is None else ''}"


def describe_gpu_load(seen: Observation) -> str:
    """``"97%"``; "" if unknown."""
    return "" if seen.gpu is None or seen.gpu.busy is None else f"{seen.gpu.busy:.0%}"


def describe_loss(row: RankFacts) -> str:
    """How and when the rank's previous process ended; "" if it had none."""
    if not row.death:
        return ""
    when = datetime.now().astimezone() - timedelta(seconds=row.death_age)
    what = "is gone" if row.state == "gone" else "is fresh"
    return f"{what} since {when:%H:%M:%S}: {row.death}"
