"""Compare: the first difference between ranks is found by digests, in few rounds, wherever it is."""

from __future__ import annotations

import asyncio
import hashlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.client.variables.variables import check
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.protocol import RankOp, RankReplyBody
from jdist.core.messages.values import Digest, Digested, ElementRead, ReadElement
from jdist.wire.values.partition import bounds

Entry = tuple[str, list[Any]]
"""An entry's meta and its flat elements."""


def digest(values: list[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


class Ranks:
    """Stands for a link: each rank holds entries by key, and answers as a worker does."""

    def __init__(self, held: dict[int, dict[str, Entry] | str]):
        self.held = held
        self.asked: list[RankOp] = []

    async def query(self, ranks: tuple[int, ...], op: RankOp, timeout: float = 30.0) -> dict[int, RankReplyBody]:
        self.asked.append(op)
        return {r: self._answer(self.held[r], op) for r in ranks}

    def _answer(self, held: dict[str, Entry] | str, op: RankOp) -> RankReplyBody:
        if isinstance(held, str):
            return QueryFailed(held)
        if isinstance(op, Digest) and not op.blocks:
            return Digested(tuple((key, meta, digest(values)) for key, (meta, values) in held.items()))
        if isinstance(op, Digest):
            part = held[op.key][1][op.start : op.stop]
            cuts = [bounds(len(part), i, op.blocks) for i in range(op.blocks)]
            return Digested(tuple(("", "", digest(part[a:b])) for a, b in cuts))
        assert isinstance(op, ReadElement)
        meta, values = held[op.key]
        sizes = [int(s) for s in meta.rpartition("[")[2][:-1].split(",") if s] if "[" in meta else []
        index = tuple(op.index // math.prod(sizes[i + 1 :]) % s for i, s in enumerate(sizes))
        return ElementRead(index, repr(values[op.index]))


def tensor(values: list[Any], *shape: int) -> Entry:
    return f"float32 [{', '.join(map(str, shape or (len(values),)))}]", values


def compared(held: dict[int, dict[str, Entry] | str], expr: str = "x") -> tuple[Any, Ranks]:
    link = Ranks(held)
    return asyncio.run(check(link, expr, tuple(held))), link  # type: ignore[arg-type]


def test_equal_is_told_after_one_question() -> None:
    found, link = compared({r: {"a": tensor([1, 2]), "b": tensor([3])} for r in range(4)})
    assert found
    assert str(found) == "x is equal on all ranks (2 entries, compared by digest)"
    assert len(link.asked) == 1
    assert repr(compared({0: {"": tensor([1])}})[0]) == "x is equal on all ranks (compared by digest)"


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 3000), st.data())
def test_the_first_differing_element_is_found(size: int, data: st.DataObject) -> None:
    at = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=3)))
    other = [0] * size
    for i in at:
        other[i] = 1
    found, link = compared({0: {"": tensor([0] * size)}, 1: {"": tensor(other)}, 5: {"": tensor([0] * size)}})
    assert not found
    assert (found.index, found.found) == ((at[0],), (((0, 5), "0"), ((1,), "1")))
    assert len(link.asked) <= 2 + math.ceil(math.log(size, 64)) + 1
    assert str(found) == f"x at index [{at[0]}] differs: ranks 0, 5: 0; rank 1: 1"


def test_the_index_is_the_tensors() -> None:
    found, _ = compared({0: {"w": tensor([0] * 12, 3, 4)}, 1: {"w": tensor([0] * 6 + [9] * 6, 3, 4)}})
    assert (found.key, found.index) == ("w", (1, 2))
    assert "x entry 'w' at index [1, 2] differs: rank 0: 0; rank 1: 9" in str(found)


def test_the_first_entry_that_differs_is_named() -> None:
    one = {"a": tensor([1]), "b": tensor([2]), "c": tensor([3])}
    found, _ = compared({0: one, 1: {**one, "c": tensor([4]), "b": tensor([5])}})
    assert found.key == "b"


@pytest.mark.parametrize(
    ("other", "text"),
    [({"a": tensor([1, 2], 1, 2)}, "float32 [1, 2]"), ({"a": ("float64 [2]", [1, 2])}, "float64 [2]"), ({}, "missing")],
)
def test_another_shape_type_or_key_is_told_without_narrowing(other: dict[str, Entry], text: str) -> None:
    found, link = compared({0: {"a": tensor([1, 2])}, 1: other})
    assert found.found == (((0,), "float32 [2]"), ((1,), text))
    assert found.index is None
    assert len(link.asked) == 1


def test_a_key_that_only_a_later_rank_has_is_found() -> None:
    found, _ = compared({0: {"a": tensor([1])}, 1: {"a": tensor([1]), "extra": tensor([2])}})
    assert (found.key, found.found) == ("extra", (((0,), "missing"), ((1,), "float32 [1]")))


def test_values_without_elements_are_compared_whole() -> None:
    found, _ = compared({0: {"": ("int", [3])}, 1: {"": ("int", [4])}})
    assert (found.index, found.found) == (None, (((0,), "3"), ((1,), "4")))


def test_a_scalar_tensor_has_the_empty_index() -> None:
    found, _ = compared({0: {"": ("float32 []", [3])}, 1: {"": ("float32 []", [4])}})
    assert found.index == ()
    assert str(found) == "x at index [] differs: rank 0: 3; rank 1: 4"


def test_most_ranks_come_first() -> None:
    held: dict[int, dict[str, Entry] | str] = {r: {"": tensor([7 if r == 0 else 1])} for r in range(4)}
    assert compared(held)[0].found == (((1, 2, 3), "1"), ((0,), "7"))


def test_ranks_that_do_not_have_it_are_named() -> None:
    with pytest.raises(UsageError, match=r"rank 1: no name 'x'; rank 3: busy"):
        compared({0: {"": tensor([1])}, 3: "busy", 1: "no name 'x'"})


def test_a_value_that_changes_while_it_is_compared_is_told() -> None:
    class Changing(Ranks):
        async def query(self, ranks: tuple[int, ...], op: RankOp, timeout: float = 30.0) -> dict[int, RankReplyBody]:
            answers = await super().query(ranks, op, timeout)
            self.held = {r: {"": tensor([0] * 100)} for r in self.held}
            return answers

    link = Changing({0: {"": tensor([0] * 100)}, 1: {"": tensor([1] * 100)}})
    found = asyncio.run(check(link, "x", (0, 1)))  # type: ignore[arg-type]
    assert not found
    assert "changed while it was compared" in str(found)
