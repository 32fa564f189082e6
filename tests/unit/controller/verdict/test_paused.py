"""Verdicts on runs with paused ranks."""

from __future__ import annotations

from msgspec import structs

from jdist.controller.verdict.decide import decide
from support.rank_snapshots import busy, coll, seen


def test_a_paused_rank_is_waited_for_and_not_accused() -> None:
    """Whatever it was about to do, and whatever a run in its frame does."""
    place = "train_step, line 8"
    inner = structs.replace(coll(3, number=16), paused=place, note="run 9")
    ranks = {0: coll(0), 1: coll(1), 2: busy(2, paused=place), 3: inner}
    found = decide(1, ranks)
    assert found is not None
    assert (found.kind, found.responsible, found.waiting, found.is_certain) == ("slow", (2, 3), (0, 1), False)
    assert found.reason == "ranks 0-1 wait for ranks 2-3, which are paused at train_step, line 8"
    assert found.details == (
        "ranks 0-1 wait in all_reduce at cell line 5 (0.6 s)",
        "rank 2 is paused at train_step, line 8",
        "rank 3 is paused at train_step, line 8, and run 9 is running there",
    )
    assert [(r.action, r.ranks) for r in found.remedies] == [("continue", "2-3"), ("interrupt", "")]
    unlike = seen(3, paused="f, line 1")
    found = decide(1, ranks | {3: unlike})
    assert found is not None
    assert found.reason == "ranks 0-1 wait for ranks 2-3, which are paused"
    over = decide(1, {0: coll(0), 1: seen(1, "done"), 2: coll(2), 3: busy(3, paused=place)})
    assert over is not None
    assert (over.kind, over.responsible) == ("missing", (1,)), "the others are judged as ever"
    inner = decide(9, {0: coll(0), 1: seen(1, "elsewhere", paused=place, note="run 1"), 2: coll(2), 3: coll(3)})
    assert inner is not None
    assert inner.reason == f"ranks 0, 2-3 wait for rank 1 (node 0, h0), which is paused at {place}"
    assert decide(1, {r: busy(r, paused=place) for r in range(4)}) is None
