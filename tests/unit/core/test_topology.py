"""Topology: ranks are dense and node-major; meshes are row-major; what is written wrongly is named."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.core.errors import UsageError
from jdist.core.topology import Mesh, Topology, check_size, parse_nproc

counts = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@given(counts)
def test_every_rank_has_one_place(nproc: list[int]) -> None:
    t = Topology(tuple(nproc))
    assert t.world_size == sum(nproc)
    assert [r for n in range(t.nnodes) for r in t.ranks_on(n)] == list(range(t.world_size))
    for rank in range(t.world_size):
        node = t.node_rank(rank)
        assert t.first_rank(node) + t.local_rank(rank) == rank
        assert 0 <= t.local_rank(rank) < t.nproc_per_node[node]


@given(counts, st.integers())
def test_there_is_no_place_outside_the_world(nproc: list[int], rank: int) -> None:
    t = Topology(tuple(nproc))
    if not 0 <= rank < t.world_size:
        with pytest.raises(IndexError):
            t.node_rank(rank)


def test_where_names_node_and_host() -> None:
    t = Topology((2, 1), ("alpha", "beta"))
    assert t.where(2) == "rank 2 (node 1, beta)"
    assert Topology((2, 1)).where(2) == "rank 2 (node 1)"
    assert (t.hostname(1), t.hostname(5)) == ("beta", "?")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_mesh_coordinates_are_row_major(sizes: list[int]) -> None:
    names = [f"d{i}" for i in range(len(sizes))]
    world = math.prod(sizes)
    mesh = Mesh.parse(",".join(f"{n}={s}" for n, s in zip(names, sizes, strict=True)), world)
    assert str(mesh) == ",".join(f"{n}={s}" for n, s in zip(names, sizes, strict=True))
    points = [tuple(mesh.coordinate(r, n) for n in names) for r in range(world)]
    assert points == sorted(set(points))
    assert all(0 <= c < s for p in points for c, s in zip(p, sizes, strict=True))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dp=2,tp=3", ["2 x 3 = 6 ranks", "the world has 4"]),
        ("dp", ["dp=2,tp=2"]),
        ("dp=", ["dp=2,tp=2"]),
        ("=4", ["dp=2,tp=2"]),
        ("dp=0", ["dp=2,tp=2"]),
        ("dp=-4", ["dp=2,tp=2"]),
        ("2dp=4", ["dp=2,tp=2"]),
        ("dp=2,dp=2", ["'dp' is named twice"]),
        ("", ["dp=2,tp=2"]),
        ("dp=" + "9" * 5000, ["dp=2,tp=2"]),
        ("node=4", ["'node'"]),
    ],
)
def test_a_bad_mesh_is_named(text: str, says: list[str]) -> None:
    with pytest.raises(UsageError) as e:
        Mesh.parse(text, 4)
    for part in says:
        assert part in str(e.value)


@pytest.mark.parametrize(
    ("text", "nnodes", "expected"),
    [("2", 1, (2,)), ("2", 3, (2, 2, 2)), ("2,1", 2, (2, 1)), ("2,1", 1, (2, 1)), (" 4 ", 1, (4,))],
)
def test_nproc_per_node(text: str, nnodes: int, expected: tuple[int, ...]) -> None:
    assert parse_nproc(text, nnodes) == expected


@pytest.mark.parametrize(
    ("text", "nnodes", "says"),
    [
        ("two", 1, "'two'"),
        ("", 1, "a number"),
        ("2,,1", 3, "'2,,1'"),
        ("0", 1, "at least one rank"),
        ("2,-1", 2, "at least one rank"),
        ("2,1", 3, "names 2 nodes, but --nnodes is 3"),
        ("9" * 5000, 1, "a number"),
    ],
)
def test_a_bad_nproc_per_node_is_named(text: str, nnodes: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_nproc(text, nnodes)


@pytest.mark.parametrize(("nnodes", "text"), [(1, "1000000000"), (1000, "100"), (3, "1,2,1000000000"), (10**9, "1")])
def test_no_cluster_of_any_size_is_begun(nnodes: int, text: str) -> None:
    with pytest.raises(UsageError, match="more than jdist starts; at most"):
        parse_nproc(text, nnodes)


def test_the_largest_clusters() -> None:
    check_size(4096, (16,))
    assert len(parse_nproc("8", 4096)) == 4096
