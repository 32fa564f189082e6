"""Runs that pause: waiting until they have, and letting them go on to their end."""

from __future__ import annotations

from typing import Any

import jdist
from support.waits import eventually

TIMEOUT = 60.0


def paused(cluster: jdist.Cluster, code: str, ranks: Any, on: Any = None, **options: Any) -> jdist.CellRun:
    """A run on ``on`` (default: all ranks) of which exactly these ranks have paused."""
    run = cluster.run(code, ranks=on, background=True, timeout=TIMEOUT, **options)
    assert eventually(lambda: run.is_done or set(run.paused) == set(ranks)), run.paused
    assert not run.is_done, run.outcomes
    return run


def places(run: jdist.CellRun) -> dict[int, str]:
    """``{rank: "f:3"}`` of the ranks that are paused."""
    return {rank: f"{at.at.function}:{at.at.line}" for rank, at in sorted(run.paused.items())}


def finished(cluster: jdist.Cluster, run: jdist.CellRun) -> dict[int, Any]:
    """The values of a run that has been let go on wherever it was paused."""
    cluster.resume(timeout=0.1)
    assert run.wait(TIMEOUT), cluster.status()
    run.check()
    return run.values
