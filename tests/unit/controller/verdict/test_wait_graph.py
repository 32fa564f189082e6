"""Wait graph: which ranks may still move, and which wait in a circle."""

from __future__ import annotations

import pytest

from jdist.controller.verdict import wait_graph
from jdist.controller.verdict.wait_graph import RankSnapshot, circle, is_behind, may_move, missing, needs
from jdist.core.messages.observation import ANY
from support.rank_snapshots import busy, call, coll, over, recv, send, store, world


def test_who_may_move() -> None:
    assert may_move(world(busy(0), recv(1, 0), recv(2, 1), over(3))) == {0, 1, 2}
    assert may_move(world(recv(0, 1), recv(1, 0), recv(2, 0), over(3))) == set()
    assert circle([0, 1, 2], world(recv(0, 1), recv(1, 2), recv(2, 1), over(3))) == [1, 2]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (world(coll(0), over(1), coll(2), busy(3)), [{1}, {3}]),
        (world(recv(0, 1), busy(1), busy(2), busy(3)), [{1}]),
        (world(recv(0, ANY), busy(1), busy(2), busy(3)), [{1, 2, 3}]),
        (world(recv(0, 1), send(1, 0), busy(2), busy(3)), []),
        (world(store(0, "store.wait"), over(1), over(2), over(3)), [{1, 2, 3}]),
        (world(store(0), store(1), over(2), busy(3)), [{2}, {3}]),
    ],
    ids=["collective", "recv", "recv from any", "recv with its send", "store key", "new_group"],
)
def test_what_a_blocked_rank_needs(ranks: dict[int, RankSnapshot], expected: list[set[int]]) -> None:
    assert needs(0, ranks) == [frozenset(need) for need in expected]


def test_who_is_missing_from_a_collective() -> None:
    ranks = world(coll(0), over(1), RankSnapshot("rank 2", "lost"), RankSnapshot("rank 3", "elsewhere"))
    assert missing(call(), ranks) == [1, 2], "of rank 3 nothing is known: it may be in it"
    failed = over(1, "failed", 17, recent=(call(),))
    assert missing(call(), world(coll(0), failed, coll(2), coll(3))) == [1], "it left the call with an error"


def test_a_send_is_no_recv() -> None:
    assert (call("isend").is_send, call("irecv").is_send) == (True, False)


def test_what_many_ranks_wait_for_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(wait_graph, "_missing", lambda call, ranks: found.append(call.op) or [3])
    ranks = world(coll(0), coll(1), coll(2), over(3))
    assert [needs(rank, ranks) for rank in (0, 1, 2)] == [[{3}]] * 3
    assert found == ["all_reduce"]
    assert needs(0, world(coll(0, number=18), over(1), over(2), over(3))) == [{3}]
    assert found == ["all_reduce"] * 2, "nothing is known of another poll"


def test_who_is_behind() -> None:
    ahead = coll(1, number=18)
    assert is_behind(0, world(coll(0), ahead, coll(2), over(3)))
    assert not is_behind(1, world(coll(0), ahead, coll(2), over(3)))
    assert not is_behind(0, world(coll(0), coll(1), recv(2, 0), over(3)))
