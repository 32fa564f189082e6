"""64 ranks on one machine start, run, hang, are named, come free and go on with their names."""

from __future__ import annotations

from collections.abc import Callable

import jdist
from support.cells import ALL_REDUCE
from support.waits import eventually

SIZE = 64
MISSING = 37
STARTED = 300.0
"""Seconds for the start on a busy machine, which imports torch once and forks each rank."""


def test_64_ranks(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(SIZE, 1, timeout=STARTED)
    kept = "kept = torch.full((3,), float(rank))"
    assert own.run(f"{kept}\n{ALL_REDUCE}", timeout=120).values == dict.fromkeys(range(SIZE), float(SIZE))
    run = own.run(f"if rank != {MISSING}: dist.all_reduce(torch.ones(1))", background=True)
    assert eventually(lambda: run.verdict and run.verdict.responsible, 60)
    assert run.verdict is not None
    assert run.verdict.responsible == (MISSING,)
    run.cancel()
    assert run.wait(60)
    assert {o.kind for rank, o in run.outcomes.items() if rank != MISSING} == {"interrupted"}
    expected = {rank: (float(SIZE), 3.0 * rank) for rank in range(SIZE)}
    assert own.run(f"{ALL_REDUCE}, kept.sum().item()", timeout=120).values == expected
