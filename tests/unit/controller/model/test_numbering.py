"""Numbering: who has which number after some ranks have been removed, and what that does to all that names ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jdist.controller.model.world import Numbering
from jdist.core.messages.membership import GroupSpec

NODE_OF = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


def without(*gone: int) -> Numbering:
    return Numbering.without(gone, NODE_OF)


def test_the_others_close_up_in_their_order() -> None:
    assert without(3).ranks == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}
    assert without(3).nodes == {0: 0, 1: 1, 2: 2}


def test_a_node_without_ranks_leaves_the_numbering_too() -> None:
    assert without(2, 3).nodes == {0: 0, 2: 1}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_numbers_are_dense_and_node_major(nproc: list[int], data: st.DataObject) -> None:
    node_of = dict(enumerate(node for node, n in enumerate(nproc) for _ in range(n)))
    gone = data.draw(st.sets(st.sampled_from(sorted(node_of)), max_size=len(node_of) - 1))
    numbering = Numbering.without(gone, node_of)
    assert sorted(numbering.ranks.values()) == list(range(len(node_of) - len(gone)))
    assert not gone & numbering.ranks.keys()
    nodes = [numbering.nodes[node_of[old]] for old in sorted(numbering.ranks, key=numbering.ranks.__getitem__)]
    assert nodes == sorted(nodes)
    assert set(nodes) == set(range(len(set(nodes))))


def test_groups_keep_their_place_and_those_that_lose_a_member_are_gone() -> None:
    numbering = without(3)
    assert numbering.group(GroupSpec((0, 5), "gloo", "a")) == GroupSpec((0, 4), "gloo", "a")
    assert numbering.group(GroupSpec((3, 4), None, "b")) == GroupSpec((), None, "b", is_gone=True)
    split = GroupSpec((), splits=((0, 1), (2, 3), (5, 4)))
    assert numbering.group(split).splits == ((0, 1), (4, 3))
    assert without(0, 3, 5).group(split).is_gone
    gone = GroupSpec((), is_gone=True)
    assert numbering.group(gone) == gone
