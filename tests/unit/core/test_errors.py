"""Errors: one tree; each carries what its catcher needs; the nearest right word is named."""

from __future__ import annotations

import re

import pytest

import jdist
from jdist.core import errors
from jdist.core.errors import CellError, JdistError, ValueFailed, nearest
from jdist.core.outcome import Outcome

TREE = {
    "JdistError": None,
    "UsageError": "JdistError",
    "LaunchError": "JdistError",
    "ConnectionLost": "JdistError",
    "ProtocolError": "JdistError",
    "ValueFailed": "JdistError",
    "Overrun": "ProtocolError",
    "NotPicklable": "JdistError",
    "ShardedValue": "NotPicklable",
    "NotRebuilt": "JdistError",
    "TooLarge": "JdistError",
    "CellError": "JdistError",
    "CellTimeout": "CellError",
    "CellInterrupted": "CellError",
    "RankLost": "CellError",
}


def test_the_tree_is_the_one_that_is_drawn() -> None:
    classes = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, JdistError)}
    assert {n: c.__base__.__name__ if n != "JdistError" else None for n, c in classes.items()} == TREE
    drawn = re.findall(r"([A-Z]\w+) {2,}\w", errors.__doc__ or "")
    assert set(drawn) == set(TREE) - {"JdistError"}


INTERNAL = {"Overrun", "NotPicklable", "ShardedValue", "NotRebuilt", "TooLarge"}


@pytest.mark.parametrize("name", sorted(set(TREE) - INTERNAL))
def test_every_error_that_a_user_catches_is_public(name: str) -> None:
    assert getattr(jdist, name) is getattr(errors, name)


class Run:
    """A run that is over, with one healthy rank."""

    def __init__(self) -> None:
        self.outcomes = {0: Outcome(kind="value", read_value=lambda: 5), 1: Outcome(kind="error")}
        self.values = {0: 5}


def test_a_cell_error_carries_its_run() -> None:
    error = CellError("rank 1 failed", Run())
    assert set(error.outcomes) == {0, 1}
    assert error.values == {0: 5}
    assert (CellError("x").outcomes, CellError("x").values) == ({}, {})


def test_a_failed_value_carries_what_arrived() -> None:
    error = ValueFailed("rank 1: no", {0: 7}, {1: "no"})
    assert (error.values, error.errors) == ({0: 7}, {1: "no"})


@pytest.mark.parametrize("error", [ValueFailed("two\nlines"), CellError("two\nlines")])
def test_a_notebook_shows_the_message_without_jdists_frames(error: JdistError) -> None:
    shown = "\n".join(error._render_traceback_())
    assert f"{type(error).__name__}: two\nlines" in shown
    assert "File" not in shown


@pytest.mark.parametrize(
    ("word", "known", "says"),
    [
        ("strat", ["start", "stop"], "; did you mean start?"),
        ("zzz", ["start", "stop"], "; there is start, stop"),
        ("zzz", [], ""),
        ("11", [1, 345], "; did you mean 1?"),
    ],
)
def test_nearest(word: str, known: list[object], says: str) -> None:
    assert nearest(word, known) == says
