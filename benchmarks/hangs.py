"""Hangs: seconds from the moment a run can no longer finish to the verdict, to free ranks, and to a working group.

The floor is what one pays without jdist once one has noticed it: as many fresh interpreters that import torch and form
their group again (nothing in them survives; torch itself would wait half an hour before it says anything).
"""

from __future__ import annotations

import threading
import time

from measuring.frontend import private_runtime
from measuring.table import SECONDS, Pairs, Table
from start import start_by_themselves

import jdist
from jdist.core.messages.base import Message
from jdist.core.messages.observation import VerdictChanged
from jdist.core.messages.runs import RankDone

TURNS = 7
VERDICT_AIM = 1.0
ALL_REDUCE = "_t = torch.ones(1); dist.all_reduce(_t); _t.item()"
HANGS = {
    "a rank skips a collective": "if rank != 1: dist.all_reduce(torch.ones(16))",
    "a rank never sends": "if rank == 0: dist.recv(torch.ones(2), src=1)",
    "receives that cross": "if rank < 2: dist.recv(torch.ones(2), src=1 - rank)",
    "new_group on some ranks": "if rank != 2: dist.new_group([0, 1, 2, 3])",
}


def hang(cluster: jdist.Cluster, code: str) -> tuple[float, float, float]:
    """Seconds to the verdict, to free ranks and to the first correct all_reduce, each from the event before it."""
    last_end = began = time.perf_counter()
    judged = threading.Event()
    run = cluster.run(code, background=True)

    def watch(message: Message | None) -> None:
        nonlocal last_end
        if isinstance(message, RankDone):
            last_end = time.perf_counter()
        elif isinstance(message, VerdictChanged) and message.verdict is not None and message.verdict.is_certain:
            judged.set()

    run.watch(watch)
    if not judged.wait(20):
        raise RuntimeError(f"no verdict on {code!r}")
    told = time.perf_counter() - max(began, last_end)
    freeing = time.perf_counter()
    run.cancel()
    run.wait(20)
    freed = time.perf_counter() - freeing
    forming = time.perf_counter()
    if set(cluster.run(ALL_REDUCE, timeout=20).values.values()) != {float(cluster.world_size)}:
        raise RuntimeError("a wrong all_reduce")
    return told, freed, time.perf_counter() - forming


def main() -> None:
    with jdist.start(4, backend="gloo") as cluster:
        table = Table("a hang on 4 ranks; floor: 4 fresh interpreters that import torch and form their group again")
        for what, code in HANGS.items():
            measured = [hang(cluster, code) for _ in range(TURNS)]
            told, freed, formed = (tuple(m[i] for m in measured) for i in range(3))
            table.alone(f"{what}: to the verdict", told, SECONDS, most=VERDICT_AIM)
            table.alone("  interrupt, to the last rank's end", freed, SECONDS)
            floors = tuple(start_by_themselves(4) for _ in range(3))
            table.row("  to the next right all_reduce", Pairs(formed[: len(floors)], floors), SECONDS)


if __name__ == "__main__":
    with private_runtime():
        main()
