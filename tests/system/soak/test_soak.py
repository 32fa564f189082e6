"""Faults of a fixed seed on one cluster; ``soak.py`` runs as many as asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jdist
from support.soak import soak

FAULTS = 24
SEED = 1


@pytest.mark.timeout(600)
def test_what_is_broken_is_named_and_nothing_else_is_lost(
    fresh_cluster: Callable[..., jdist.Cluster], traces: object
) -> None:
    reports = list(soak.soak(fresh_cluster(2, 2), SEED, FAULTS, None))
    print(soak.table(reports))
    wrong = [f"fault {n} ({r.kind}): {'; '.join(r.wrong)}" for n, r in enumerate(reports) if r.wrong]
    assert not wrong, "\n".join(wrong)
    assert len(reports) == FAULTS
    assert sum(r.verdict in ("right", "open") for r in reports) > FAULTS / 3
    assert sum(r.verdict == "right" for r in reports) > FAULTS / 6, (
        "most groups have two ranks, where either may be right"
    )
