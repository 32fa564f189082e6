"""Waiting until ranks of a run are paused."""

from __future__ import annotations

from collections.abc import Iterable

import jdist
from jdist.core.messages.debug import RankPaused
from support.waits import eventually

ALL = range(4)
"""The ranks of the shared cluster."""


def everywhere(value: object) -> dict[int, object]:
    """The same on all ranks."""
    return dict.fromkeys(ALL, value)


def paused(run: jdist.CellRun, ranks: Iterable[int]) -> dict[int, RankPaused]:
    """Where the ranks are paused, once just these are."""
    expected = set(ranks)
    assert eventually(lambda: set(run.paused) == expected or run.is_done), f"paused: {run.paused}"
    assert not run.is_done, f"it has ended, with {run.outcomes}"
    return dict(sorted(run.paused.items()))


def ended(run: jdist.CellRun) -> dict[int, object]:
    """The values of a run that ends well."""
    assert run.wait(60), f"{run!r}, paused: {run.paused}, verdict: {run.verdict}"
    run.check()
    return run.values
