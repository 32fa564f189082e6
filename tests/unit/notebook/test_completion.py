"""Which part of a cell is the ranks', and what they answered put together, with what differs between them marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.core.messages.values import Completed
from jdist.notebook.completion import combine, describe_name, is_for_ranks, ranks_part, spread


@pytest.mark.parametrize(
    ("code", "is_auto", "expected"),
    [
        ("%%dist\nx", False, ("", 7)),
        ("%%dist -r 0,1 -b\nx", False, ("-r 0,1 -b", 17)),
        ("\n\n%%dist  -r 1 \nx", False, ("-r 1", 16)),
        ("%%dist", False, ("", 6)),
        ("%%distance\nx", False, None),
        ("# first\n\n  # second\n%%dist -r 0\nx", False, ("-r 0", 32)),
        ("# only this\n%%time\nx", True, None),
        ("# only this", True, None),
        ("# one\nx", True, ("", 0)),
        ("x  # not above\n%%dist\ny", False, None),
        ("%%time\nx", False, None),
        ("x", False, None),
        ("x", True, ("", 0)),
        ("\n  x", True, ("", 0)),
        ("%time x", True, None),
        ("!ls", True, None),
        ("%%dist -g tp\nx", True, ("-g tp", 13)),
        ("", True, None),
        ("", False, None),
    ],
)
def test_the_part_for_ranks(code: str, is_auto: bool, expected: tuple[str, int] | None) -> None:
    assert ranks_part(code, is_auto=is_auto) == expected


@given(st.text(alphabet="%dist \n\tx!", max_size=20), st.booleans())
def test_the_part_begins_after_the_magics_line(code: str, is_auto: bool) -> None:
    part = ranks_part(code, is_auto=is_auto)
    if part is not None:
        _, offset = part
        assert "%%dist" not in code[offset:].split("\n", maxsplit=1)[0] or is_auto or code.count("%%dist") > 1
        assert offset == 0 or code[offset - 1] == "\n" or offset == len(code)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x.", True),
        ("", True),
        ("import tor", False),
        ("  from torch import n", False),
        ("%time x", False),
        ("!l", False),
    ],
)
def test_modules_and_magics_are_the_notebooks(line: str, expected: bool) -> None:
    assert is_for_ranks(line) is expected


def test_a_sample_of_a_large_world_has_both_ends() -> None:
    assert spread((0, 2, 5), 4) == (0, 2, 5)
    chosen = spread(tuple(range(512)), 32)
    assert (len(set(chosen)), chosen[0], chosen[-1]) == (32, 0, 511)


def said(*pairs: tuple[str, str]) -> Completed:
    return Completed(tuple(name for name, _ in pairs), 0, 1, tuple(kind for _, kind in pairs))


def test_names_that_differ_between_ranks_are_marked() -> None:
    answers = {
        0: said(("alpha", "int"), ("beta", "Tensor"), ("gamma", "function")),
        1: said(("beta", "Tensor"), ("gamma", "str")),
        3: said(("beta", "Tensor"), ("gamma", "str"), ("delta", "")),
    }
    assert combine(answers) == [
        ("beta", "Tensor"),
        ("gamma", "function on 0, str on 1,3"),
        ("alpha", "int only on 0"),
        ("delta", "only on 3"),
    ]


def test_an_answer_without_types() -> None:
    assert combine({0: Completed(("x",), 0, 1)}) == [("x", "")]


def test_what_is_the_same_is_said_once() -> None:
    assert describe_name("x", {0: "Type: int", 1: "Type: int"}) == "Type: int"
    assert describe_name("x", {0: "", 1: ""}) == ""
    assert describe_name("x", {}) == ""


def test_what_differs_is_said_by_rank() -> None:
    text = describe_name("x", {0: "Type: int", 1: "", 2: "Type: int"})
    assert text.startswith("x is not the same on every rank")
    assert "[0,2] Type: int" in text
    assert "[1] there is no x" in text
