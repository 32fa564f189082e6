"""Members: places, numbers, and what ranks have in common."""

from __future__ import annotations

import pytest

from jdist.controller.model.world import Node, Rank, World
from jdist.core.messages.membership import GroupSpec
from support.driver import facts


def world(*nproc: int | None) -> World:
    """Nodes with so many ranks; None for a place without a node."""
    w = World(len(nproc))
    for n, count in enumerate(nproc):
        if count is not None:
            w.nodes[n] = Node(n, f"a-{n}", facts(f"h{n}"), count, 0.0)
    if w.is_complete:
        w.number_ranks()
    return w


def test_ranks_are_numbered_node_by_node() -> None:
    w = world(2, 1, 3)
    assert {r.rank: r.node_rank for r in w.ranks.values()} == {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 2}
    assert w.workers_by_node((5, 0, 2, 1)) == {2: (5,), 0: (0, 1), 1: (2,)}
    assert w.where(3) == "rank 3 (node 2, h2)"


@pytest.mark.parametrize(
    ("w", "wanted", "place"),
    [
        (world(None, None), -1, 0),
        (world(1, None), -1, 1),
        (world(None, 1), -1, 0),
        (world(None, None), 1, 1),
        (world(None, 1), 1, None),
        (world(None, None), 2, None),
        (world(1, 1), -1, None),
        (world(1, 1), 0, None),
    ],
)
def test_free_place(w: World, wanted: int, place: int | None) -> None:
    assert w.free_place(wanted) == place


def test_the_place_of_a_node_that_is_gone_is_free() -> None:
    w = world(1, 1)
    w.nodes[1].agent = ""
    assert w.free_place(-1) == w.free_place(1) == 1
    assert not w.is_complete
    assert w.node_of_agent("a-1") is None


def specs(*ranks: int) -> list[GroupSpec]:
    return [GroupSpec((r,)) for r in ranks]


@pytest.mark.parametrize(
    ("logs", "common"),
    [
        ([[1, 2], [1, 2]], [1, 2]),
        ([[1, 2, 3], [1, 2]], [1, 2]),
        ([[1, 3, 2], [1, 2, 3]], [1]),
        ([[], [1]], []),
        ([[2, 1], [1, 2]], []),
    ],
)
def test_common_groups_are_the_common_beginning(logs: list[list[int]], common: list[int]) -> None:
    w = world(len(logs))
    for rank, log in enumerate(logs):
        w.ranks[rank].groups = specs(*log)
        w.ranks[rank].generation = 3
    assert list(w.common_groups(3)) == specs(*common)
    assert w.common_groups(4) == ()


def test_common_groups_are_those_of_the_ranks_that_held_the_generation() -> None:
    w = world(2)
    w.ranks[0].groups, w.ranks[0].generation = specs(1), 3
    assert list(w.common_groups(3)) == specs(1)


@pytest.mark.parametrize(
    ("old", "is_fresh"), [(Rank(1, 0), False), (Rank(1, 0, was_up=True), True), (Rank(1, 0, is_fresh=True), True)]
)
def test_a_replaced_rank_is_fresh_if_it_had_names(old: Rank, is_fresh: bool) -> None:
    new = old.replaced(4)
    assert (new.phase, new.incarnation, new.generation, new.is_fresh, new.needs_setup) == (
        "starting",
        4,
        0,
        is_fresh,
        is_fresh,
    )
