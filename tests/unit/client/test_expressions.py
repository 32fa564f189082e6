"""Expressions: names are told apart at the commas that separate them, and at no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.client.active_runs import script_cell
from jdist.client.variables.variables import split_names
from jdist.core.errors import UsageError

EXPRESSIONS = [
    "x",
    "model.weight",
    "b[0, 1]",
    "f(x, y)",
    "d['a,b']",
    'd["it\'s, so"]',
    "{1: (2, 3)}",
    "[1, [2, 3]]",
    '"a\\",b"',
]


@given(st.lists(st.sampled_from(EXPRESSIONS), min_size=1, max_size=5), st.sampled_from([",", ", ", " ,  "]))
def test_what_was_joined_is_split(names: list[str], comma: str) -> None:
    assert split_names(comma.join(names)) == tuple(names)


@pytest.mark.parametrize("text", ["", ",", "a,", ",a", "a,,b", "  "])
def test_a_missing_name_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="a name is missing"):
        split_names(text)


def test_a_script_runs_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "it's.py"
    script.write_text("")
    code = script_cell(str(script), ["--lr", "0.1", "a'b"])
    compile(code, "cell", "eval")
    assert repr(str(script)) in code
    assert repr(["--lr", "0.1", "a'b"]) in code


def test_a_script_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no script .*none\.py"):
        script_cell(str(tmp_path / "none.py"))
