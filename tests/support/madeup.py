"""Made-up answers: what ranks would say of runs whose every moment is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from jdist.client.measure.timeline import Clock, Clocks, Meeting, Timeline, match, timeline
from jdist.client.measure.trace import Trace, assemble
from jdist.core.messages.observation import Activity, Call, GroupProgress, Observation, RankTrace
from jdist.core.messages.protocol import RankReplyBody
from jdist.core.messages.status import ClusterFacts

EPOCH = 1_700_000_000.0
"""When every made-up cell began."""


def call(op: str, started: float, ended: float | None = None, **more: Any) -> Call:
    """A call of the world that is done; times count from the cell's start."""
    fields: dict[str, Any] = {"group": "0", "number": 1, "is_done": True, **more}
    if fields.get("peer") is not None:
        fields["number"] = 0
    return Call(op=op, started=EPOCH + started, ended=None if ended is None else EPOCH + ended, **fields)


def answer(*calls: Call, ended: float | None = 10.0, now: float = 20.0, left_out: int = 0, run: int = 3) -> RankTrace:
    over = None if ended is None else EPOCH + ended
    return RankTrace(run, calls, EPOCH, over, EPOCH + now, left_out)


def shifted(trace: RankTrace, skew: float) -> RankTrace:
    """The same by a clock that shows so much more."""
    calls = tuple(
        msgspec.structs.replace(c, started=c.started + skew, ended=None if c.ended is None else c.ended + skew)
        for c in trace.calls
    )
    ended = None if trace.ended is None else trace.ended + skew
    return msgspec.structs.replace(trace, calls=calls, began=trace.began + skew, ended=ended, now=trace.now + skew)


def drawn(traced: dict[int, RankTrace], members: dict[str, tuple[int, ...]] | None = None, **more: Any) -> Timeline:
    """The timeline of ranks on one host."""
    meetings: list[Meeting] = match(traced, members or {}, **more)
    return timeline(traced, meetings, Clocks(dict.fromkeys(traced, 0.0), 0.0))


def steps(world: int, number: int, compute: Callable[[int, int], float], cost: float = 0.002) -> dict[int, RankTrace]:
    """Each step every rank computes for as long as it is said, and then all reduce: blocking, ended all at once."""
    free = dict.fromkeys(range(world), 0.0)
    calls: dict[int, list[Call]] = {r: [] for r in free}
    for step in range(1, number + 1):
        entered = {r: at + compute(r, step) for r, at in free.items()}
        end = max(entered.values()) + cost
        for r, at in entered.items():
            tensor = {"shapes": ((16,),), "dtypes": ("float32",), "detail": "op=SUM", "line": 4}
            calls[r].append(call("all_reduce", at, end, number=step, **tensor))
            free[r] = end
    return {r: answer(*calls[r], ended=free[r], now=free[r] + 1) for r in free}


def noise(seed: int, most: float) -> Callable[[int, int], float]:
    """Computing that takes up to so many seconds."""
    made = random.Random(seed)
    return lambda rank, step: made.random() * most


def facts(nproc: tuple[int, ...], hosts: tuple[str, ...], backend: str = "gloo") -> ClusterFacts:
    """What the controller says of such a cluster."""
    plain: dict[type, Any] = {str: "", int: 1, bool: False}
    known = {"nproc_per_node": nproc, "hostnames": hosts, "backend": backend, "phase": "ready"}
    needed = (f for f in msgspec.structs.fields(ClusterFacts) if f.required)
    return ClusterFacts(**{f.name: plain.get(f.type, ()) for f in needed} | known)


def looked(*groups: GroupProgress) -> Observation:
    return Observation("cpu", Activity("idle"), 0, groups)


def trace(
    answers: dict[int, RankReplyBody],
    nproc: tuple[int, ...],
    hosts: tuple[str, ...],
    groups: tuple[GroupProgress, ...] = (),
    **more: Any,
) -> Trace:
    """The trace of answers; clocks are read to within half a millisecond, unless ``clocks`` says otherwise."""
    clocks = more.pop("clocks", dict.fromkeys(range(len(nproc)), Clock(0.0, 0.0005)))
    return assemble(answers, clocks, {0: looked(*groups)}, facts(nproc, hosts), **more)


Op = tuple[str, float, float]
"""Name, start and end of an operator, seconds since the cell's start."""


def rank_profile(*ops: Op, kind: dict[str, int] | None = None, run: int = 3, ended: float = 10.0, **more: Any) -> Any:
    """What a rank has recorded: operators of its main thread, unless ``kind`` says something else of a name."""
    import numpy as np

    from jdist.core.profile import COLLECTIVE, KERNEL, OPERATOR, RankProfile

    names = tuple(dict.fromkeys(name for name, _, _ in ops))
    made = sorted(ops, key=lambda op: (op[1], -op[2]))
    kinds = [(kind or {}).get(name, OPERATOR) for name, _, _ in made]
    elsewhere = {COLLECTIVE: 1, KERNEL: 2}
    return RankProfile(
        run=run,
        began=EPOCH,
        ended=EPOCH + ended,
        names=names,
        threads=("main thread", "thread 2", "stream 7"),
        starts=np.array([round(s * 1e9) for _, s, _ in made], "<i8").tobytes(),
        durations=np.array([round((e - s) * 1e9) for _, s, e in made], "<i8").tobytes(),
        name=np.array([names.index(n) for n, _, _ in made], "<u4").tobytes(),
        thread=np.array([elsewhere.get(k, 0) for k in kinds], "<u2").tobytes(),
        kind=np.array(kinds, "u1").tobytes(),
        **{"windows": ((0.0, ended),), **more},
    )
