"""Ranks: what a user may write, what it means, and what is said when it means nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.core.errors import UsageError
from jdist.core.ranks import RankSet
from jdist.core.topology import Mesh, Topology

WORLD = Topology((3, 2, 3))
MESH = Mesh(("dp", "tp"), (2, 4))
GROUPS = {"tail": (6, 7), "odd_ones": (1, 3, 5, 7)}

worlds = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(lambda n: Topology(tuple(n)))


@st.composite
def some_ranks(draw: st.DrawFn) -> tuple[Topology, RankSet]:
    world = draw(worlds)
    return world, RankSet(draw(st.sets(st.integers(0, world.world_size - 1), min_size=1)))


def parse(text: str) -> list[int]:
    return list(RankSet.parse(text, WORLD, MESH, GROUPS))


@given(some_ranks())
def test_what_is_printed_is_read_back(given_: tuple[Topology, RankSet]) -> None:
    world, ranks = given_
    assert RankSet.parse(str(ranks), world) == ranks
    assert hash(RankSet.parse(str(ranks), world)) == hash(ranks)


@given(some_ranks())
def test_all_but_and_only_are_complements(given_: tuple[Topology, RankSet]) -> None:
    world, ranks = given_
    rest = RankSet(range(world.world_size)) - ranks
    text = ",".join(f"!{r}" for r in ranks)
    if rest:
        assert RankSet.parse(text, world) == rest
    else:
        with pytest.raises(UsageError, match="leaves no rank"):
            RankSet.parse(text, world)


@given(some_ranks())
def test_negative_ranks_count_from_the_end(given_: tuple[Topology, RankSet]) -> None:
    world, ranks = given_
    assert RankSet.parse(",".join(str(r - world.world_size) for r in ranks), world) == ranks


@given(worlds, st.text(alphabet="0123456789-!,=ndop dpte*²٣x", max_size=12))
def test_any_text_is_ranks_or_a_usage_error(world: Topology, text: str) -> None:
    try:
        ranks = RankSet.parse(text, world, None, GROUPS if world.world_size >= 8 else None)
    except UsageError:
        return
    assert ranks
    assert set(ranks) <= set(range(world.world_size))


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", [0]),
        ("7,0", [0, 7]),
        ("0-3,7", [0, 1, 2, 3, 7]),
        (" 1 , 2 ", [1, 2]),
        ("1,1,1-2", [1, 2]),
        ("-1", [7]),
        ("-3--1", [5, 6, 7]),
        ("5--1", [5, 6, 7]),
        ("node=1", [3, 4]),
        ("node=0,node=2", [0, 1, 2, 5, 6, 7]),
        ("node = 1", [3, 4]),
        ("dp=1", [4, 5, 6, 7]),
        ("tp=0", [0, 4]),
        ("tail", [6, 7]),
        ("tail,0", [0, 6, 7]),
        ("all", list(range(8))),
        ("*", list(range(8))),
        ("world", list(range(8))),
        ("!2", [0, 1, 3, 4, 5, 6, 7]),
        ("!node=0", [3, 4, 5, 6, 7]),
        ("!0-5", [6, 7]),
        ("!odd_ones", [0, 2, 4, 6]),
        ("dp=0,!tp=0", [1, 2, 3]),
        ("0-3,!-6", [0, 1, 3]),
    ],
)
def test_what_may_be_written(text: str, ranks: list[int]) -> None:
    assert parse(text) == ranks


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["no ranks given", "0-3,7", "all"]),
        (" , ", ["no ranks given"]),
        ("0,8", ["no rank 8", "0 to 7"]),
        ("-9", ["no rank -9", "0 to 7"]),
        ("0-8", ["no rank 8"]),
        ("3-1", ["'3-1'", "backwards", "1-3"]),
        ("tial", ["'tial'", "did you mean tail?"]),
        ("odd_one", ["did you mean odd_ones?"]),
        ("al", ["did you mean all?"]),
        ("zebra", ["'zebra'", "all, tail, odd_ones"]),
        ("0,1.5", ["'1.5'"]),
        ("1-2-3", ["'1-2-3'"]),
        ("99999999999999999999", ["99999999999999999999"]),
        ("999999999", ["no rank 999999999"]),
        ("9" * 5000, ["names no rank"]),
        ("node=3", ["no node 3", "has 3"]),
        ("node=x", ["node=x", "node=0"]),
        ("node=-1", ["node=-1", "node=0"]),
        ("node=" + "9" * 5000, ["node=0"]),
        ("nod=1", ["'nod'", "did you mean node?"]),
        ("td=0", ["'td'", "did you mean tp?"]),
        ("dp=2", ["dp", "size 2"]),
        ("!", ["names no rank"]),
        ("all,!all", ["leaves no rank of the 8"]),
        ("1,!1", ["leaves no rank"]),
    ],
)
def test_what_is_wrong_is_named_with_what_is_right(text: str, says: list[str]) -> None:
    with pytest.raises(UsageError) as e:
        parse(text)
    for part in says:
        assert part in str(e.value)
    assert len(str(e.value)) < 300


def test_without_a_mesh_only_node_has_coordinates() -> None:
    with pytest.raises(UsageError, match="no mesh dimension 'dp'; there is node"):
        RankSet.parse("dp=0", WORLD)


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([3], "3"), ([1, 0], "0-1"), ([0, 1, 2, 3, 7], "0-3,7"), ([0, 2, 4, 5], "0,2,4-5")]
)
def test_how_ranks_are_printed(ranks: list[int], text: str) -> None:
    assert str(RankSet(ranks)) == text
    assert repr(RankSet(ranks)) == f"RankSet('{text}')"


def test_a_rank_set_is_a_set() -> None:
    ranks = RankSet([2, 0, 2])
    assert (list(ranks), len(ranks), 2 in ranks, 1 in ranks) == ([0, 2], 2, True, False)
    assert ranks == RankSet((0, 2))
    assert ranks != {0, 2}
    assert list(ranks - [0]) == [2]
    assert ranks.select({0: "a", 1: "b"}) == {0: "a"}
