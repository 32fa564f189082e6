"""Reform: which functions are taken, when each is called with what, and what becomes of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jdist
from jdist.worker import process
from jdist.worker.groups import on_reform


@pytest.fixture
def on_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_reform, "_functions", {})
    monkeypatch.setattr(process, "_rank", None)
    process.be_rank(3)


def test_outside_a_rank_there_is_nothing_to_call_it() -> None:
    with pytest.raises(jdist.UsageError, match="cells on ranks"):
        jdist.on_reform(lambda: None)


def test_functions_are_called_in_order_with_the_generation_or_nothing(on_a_rank: None) -> None:
    seen: list[Any] = []

    @jdist.on_reform
    def one(generation: int) -> None:
        seen.append(("one", generation))

    @jdist.on_reform
    def two() -> None:
        seen.append("two")

    jdist.on_reform(lambda *args: seen.append(args))
    assert on_reform.is_wanted()
    one(0)
    seen.clear()
    on_reform.call(7)
    assert seen == [("one", 7), "two", (7,)]


def test_another_of_the_same_name_takes_its_place(on_a_rank: None) -> None:
    seen: list[int] = []

    def make(n: int) -> Callable[[], None]:
        def rebuild() -> None:
            seen.append(n)

        return rebuild

    jdist.on_reform(make(1))
    jdist.on_reform(make(2))
    on_reform.call(1)
    assert seen == [2]


def test_one_that_raises_does_not_keep_the_others_from_being_called(
    on_a_rank: None, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    @jdist.on_reform
    def bad() -> None:
        raise ValueError("no such thing")

    jdist.on_reform(seen.append)
    with pytest.raises(ValueError, match="no such thing"):
        on_reform.call(4)
    assert seen == [4]
    assert "failed on rank 3: ValueError: no such thing" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [lambda a, b: None, 3, "text"])
def test_what_cannot_be_called_is_refused_at_once(on_a_rank: None, wrong: Any) -> None:
    with pytest.raises(jdist.UsageError, match="on_reform"):
        jdist.on_reform(wrong)
    assert not on_reform.is_wanted()
