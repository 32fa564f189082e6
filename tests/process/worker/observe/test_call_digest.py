"""Digests of a cell's collectives, on ranks that called the same and on those that did not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.ranks import Ranks

DIGEST = "_ = [(t.label, t.size, t.count, t.digest) for t in O.digests(R.find(0).began)]"


@pytest.fixture(scope="module")
def world() -> Iterator[Ranks]:
    ranks = Ranks(2)
    try:
        ranks.form()
        yield ranks
    finally:
        ranks.close()


def digested(world: Ranks, code: str | dict[int, str]) -> list[list[tuple[str, int, int, bytes]]]:
    """What each rank's cell came to."""
    world.run(code)
    return [world.side(rank, DIGEST) for rank in (0, 1)]


def test_the_same_calls_come_to_the_same(world: Ranks) -> None:
    one, other = digested(world, "for _ in range(3):\n    dist.all_reduce(torch.ones(4))\ndist.barrier()\n_ = None")
    assert one == other
    ((label, size, count, digest),) = one
    assert (label, size, count, len(digest)) == ("world", 2, 4, 8)


@pytest.mark.parametrize(
    "calls",
    [
        ("dist.all_reduce(torch.ones(4))", "dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX)"),
        ("dist.all_reduce(torch.ones(4))", "dist.all_reduce(torch.ones(4, dtype=torch.int32))"),
        ("dist.broadcast(torch.ones(4), src=0)", "dist.broadcast(torch.ones(8), src=0)"),
    ],
)
def test_what_gloo_lets_pass_comes_to_something_else(world: Ranks, calls: tuple[str, str]) -> None:
    same = "dist.all_reduce(torch.ones(2))\n"
    one, other = digested(world, {rank: f"{same}{call}\n{same}_ = None" for rank, call in enumerate(calls)})
    assert one[0][:3] == other[0][:3] == ("world", 2, 3)
    assert one[0][3] != other[0][3]


def test_the_order_counts_and_a_shape_of_as_many_elements_does_not(world: Ranks) -> None:
    first, second = "dist.all_reduce(torch.ones(2, 3))\n", "dist.all_reduce(torch.ones(6), op=dist.ReduceOp.MAX)\n"
    one, other = digested(world, {0: f"{first}{second}_ = None", 1: f"{first}{second}_ = None".replace("2, 3", "3, 2")})
    assert one == other
    turned, _ = digested(world, f"{second}{first}_ = None")
    assert turned[0][2] == one[0][2]
    assert turned[0][3] != one[0][3]


def test_objects_and_their_inner_calls_count_once_and_a_failed_call_not(world: Ranks) -> None:
    code = (
        "dist.broadcast_object_list([rank if False else {}], src=0)\n"
        "try:\n    dist.all_reduce('no tensor')\nexcept Exception:\n    pass\n"
        "dist.all_reduce(torch.ones(1), op=dist.ReduceOp(dist.ReduceOp.SUM))\n_ = None"
    )
    one, other = digested(world, code.replace("rank if False else {}", "1"))
    assert one == other
    assert one[0][2] == 2


def test_a_group_has_a_digest_of_its_own_on_its_members(world: Ranks) -> None:
    inside = "g = dist.new_group([0])\ndist.all_reduce(torch.ones(1), group=g)\n"
    one, other = digested(world, inside + "dist.all_reduce(torch.ones(1))\n_ = None")
    assert sorted((size, count) for _, size, count, _ in one) == [(1, 1), (2, 1)]
    assert [(size, count) for _, size, count, _ in other] == [(2, 1)]


def test_calls_of_several_threads_in_a_group_are_left_out(world: Ranks) -> None:
    code = (
        "import threading\ng = dist.new_group([0, 1])\n"
        "t = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1), group=g))\nt.start()\nt.join(20)\n"
        "dist.all_reduce(torch.ones(1), group=g)\ndist.all_reduce(torch.ones(1))\n_ = None"
    )
    one, _ = digested(world, code)
    assert [(label, count) for label, _, count, _ in one] == [("world", 1)]


def test_more_calls_than_are_kept_come_to_nothing_and_older_cells_are_not_counted(world: Ranks) -> None:
    one, _ = digested(world, "t = torch.ones(1)\nfor _ in range(4100):\n    dist.all_reduce(t)\n_ = None")
    assert one == []
    one, _ = digested(world, "dist.all_reduce(t)\n_ = None")
    assert [count for _, _, count, _ in one] == [1]
    assert digested(world, "_ = None") == [[], []]
