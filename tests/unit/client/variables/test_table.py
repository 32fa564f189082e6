"""The table of variables: variants, comparison, missing ranks, and lists that are cut."""

from __future__ import annotations

from typing import Any

import pytest

from jdist.client.variables.table import VariableTable, merge_lists
from jdist.core.errors import UsageError
from jdist.core.messages.values import VariableFacts, VariableList
from jdist.notebook.text.cluster_text import variable_rows


def facts(name: str, **known: Any) -> VariableFacts:
    return VariableFacts(name, **{"type": "Tensor", "shape": (2,), "dtype": "float32", "device": "cpu", **known})


def merged(*ranks: list[VariableFacts], **more: Any) -> VariableTable:
    return merge_lists({rank: VariableList(tuple(each), **more) for rank, each in enumerate(ranks)}, {})


def test_ranks_that_agree_are_together() -> None:
    table = merged(*[[facts("w", device=f"cuda:{rank}", nbytes=8)] for rank in range(64)])
    (variable,) = table
    (variant,) = variable.variants
    assert variant.ranks == tuple(range(64))
    assert variant.device == "cuda"
    assert variable.comparison == "alike"
    assert str(variable) == "w: [0-63] Tensor [2] float32 cuda, 8 B, same metadata"


def test_metadata_that_differ() -> None:
    (variable,) = merged([facts("w")], [facts("w", shape=(3,))], [facts("w", shape=(3,))])
    assert variable.comparison == "differs"
    assert [(v.ranks, v.shape) for v in variable.variants] == [((1, 2), (3,)), ((0,), (2,))]


@pytest.mark.parametrize(
    ("contents", "comparison"),
    [(["d1", "d1"], "equal"), (["d1", "d2"], "differs"), (["d1", ""], "alike"), (["", ""], "alike"), (["d1"], "")],
)
def test_contents(contents: list[str], comparison: str) -> None:
    (variable,) = merged(*[[facts("w", digest=each)] for each in contents])
    assert variable.comparison == comparison


def test_parts_of_a_sharded_tensor_are_not_compared() -> None:
    placed = "(Shard(dim=0)) on mesh dim0=2"
    (variable,) = merged([facts("w", digest="a", placement=placed)], [facts("w", digest="b", placement=placed)])
    assert variable.comparison == "alike"
    placed = "(Replicate()) on mesh dim0=2"
    (variable,) = merged([facts("w", digest="a", placement=placed)], [facts("w", digest="b", placement=placed)])
    assert variable.comparison == "differs"


def test_numbers_are_compared_by_value() -> None:
    same, other = merged(
        *[[VariableFacts("a", "int", value="1"), VariableFacts("b", "int", value=str(r))] for r in (1, 2)]
    )
    assert (same.comparison, same.variants[0].value) == ("equal", "1")
    assert (other.comparison, other.variants[0].value) == ("differs", "(2 values)")


def test_missing_ranks() -> None:
    table = merged([facts("w")], [], [facts("w")])
    assert table["w"].missing == (1,)
    assert "missing on rank 1" in str(table)
    with pytest.raises(KeyError):
        table["v"]


def test_a_name_that_is_hidden_on_a_rank_is_not_missing_there() -> None:
    lists = {0: VariableList((facts("f"),)), 1: VariableList((), hidden=("f", "g"))}
    table = merge_lists(lists, {})
    assert table["f"].missing == ()
    assert table["f"].comparison == "differs"
    assert table.hidden == 1


def test_a_list_that_is_cut_makes_no_rank_lack_a_name() -> None:
    lists = {0: VariableList((facts("a"), facts("b")), left_out=3), 1: VariableList((facts("a"), facts("z")))}
    table = merge_lists(lists, {})
    assert [(each.name, each.missing) for each in table] == [("a", ()), ("b", (1,))]
    assert table.left_out == 3
    assert "3 more names are not listed" in str(table)


def test_ranges_of_numbers() -> None:
    (variable,) = merged([facts("w", nbytes=8, mean=1.0, norm=2.0)], [facts("w", nbytes=2048, mean=1.5, norm=2.0)])
    assert "8 B … 2 KiB, mean 1 … 1.5, norm 2" in str(variable)


def test_sorting() -> None:
    table = merged([facts("b", nbytes=1), facts("a", nbytes=2, type="Other"), facts("c", nbytes=9)])
    assert [each.name for each in table.sorted("name")] == ["a", "b", "c"]
    assert [each.name for each in table.sorted("size")] == ["c", "a", "b"]
    assert [each.name for each in table.sorted("type")] == ["a", "b", "c"]
    with pytest.raises(UsageError, match="not sorted by"):
        table.sorted("dtype")  # type: ignore[arg-type]


def test_notes() -> None:
    lists = {0: VariableList((), frame="train_step"), 1: VariableList(())}
    notes = merge_lists(lists, {2: "no answer for 2 s", 3: "no answer for 2 s"}).notes
    assert notes == ["rank 0 is paused in train_step: its names", "ranks 2-3: no answer for 2 s"]


def test_rows() -> None:
    found = variable_rows(merged([facts("w", nbytes=8)], [facts("w", shape=(3,), nbytes=12)], [])).json()
    assert found["heads"] == ["name", "ranks", "type", "shape", "dtype", "device", "bytes", "compared"]
    assert found["rows"] == [
        ["w", "0", "Tensor", "[2]", "float32", "cpu", "8 B", "differs, missing on rank 2"],
        ["", "1", "Tensor", "[3]", "float32", "cpu", "12 B", ""],
    ]
