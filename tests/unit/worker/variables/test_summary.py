"""Values in a few words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jdist.worker.variables.describe import summarize


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("the repr of user code was called")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (12, "12"),
        (0.5, "0.5"),
        ([1, "a", True], "[1, 'a', True]"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "tensor [2, 3] bfloat16"),
        (torch.nn.Parameter(torch.tensor(1.0)), "tensor [] float32"),
        ({"loss": torch.zeros(()), "net": torch.nn.Linear(1, 1)}, "{'loss': tensor [] float32, 'net': <Linear>}"),
        (Loud(), "<Loud>"),
        ((Loud(), [Loud()]), "(<Loud>, [<Loud>])"),
        ([[[[1]]]], "[[[...]]]"),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, ...]"),
    ],
)
def test_a_value_in_a_few_words(value: Any, text: str) -> None:
    assert summarize(value) == text


def test_large_values_are_shortened() -> None:
    assert len(summarize("x" * 10_000)) == 60
    assert len(summarize([{str(i) * 100: "y" * 1000} for i in range(100)])) == 80
