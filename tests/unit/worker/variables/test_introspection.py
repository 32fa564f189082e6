"""A rank's completion, and what it tells of a name: from its own names, at once, and without running what is theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jdist.core.messages.values import Completed
from jdist.worker.variables.introspection import complete, introspect


class Odd:
    """Things that must not be run."""

    looked = 0

    @property
    def loud(self) -> int:
        """A property's words."""
        Odd.looked += 1
        return 1

    def __repr__(self) -> str:
        raise AssertionError("nobody asked for it")


class Broken:
    def __dir__(self) -> Any:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


def step(batch: int, *, lr: float = 0.1) -> float:
    """One step."""
    return batch * lr


NAMES: dict[str, Any] = {
    "model": torch.nn.Sequential(torch.nn.Linear(2, 3)),
    "mode": "train",
    "batch": {"image": torch.ones(2), "label": 3, 7: "seven"},
    "odd": Odd(),
    "broken": Broken(),
    "step": step,
    "torch": torch,
    "_hidden": 1,
    "größe": 2.0,
}


def ask(code: str) -> Completed:
    return complete(code, len(code), NAMES)


@pytest.mark.parametrize(
    ("code", "first"),
    [
        ("mod", "mode"),
        ("x = mod", "mode"),
        ("f(mod", "mode"),
        ("for i in ran", "range"),
        ("whi", "while"),
        ("_hid", "_hidden"),
        ("grö", "größe"),
        ("model.para", "parameters"),
        ("model.training.re", "real"),
        ("loss = torch.nn.functional.cross_ent", "cross_entropy"),
        ('batch["im', "image"),
        ("batch['", "image"),
        ("f(1)\nmod", "mode"),
        ("odd.lo", "looked"),
    ],
)
def test_what_may_follow(code: str, first: str) -> None:
    found = ask(code)
    assert found.matches[0] == first, found.matches[:3]
    assert first.startswith(code[found.start : found.end])
    assert found.end == len(code)
    assert len(found.types) == len(found.matches)


def test_types_are_told() -> None:
    assert dict(zip(ask("mod").matches, ask("mod").types, strict=True)) == {"mode": "str", "model": "Sequential"}
    assert ask("step").types == ("function",)
    assert ask('batch["im').types == ("Tensor",)
    assert ask("torch.nn.Linea").types[0] == "class"
    assert ask("whi").types == ("keyword",)
    assert ask("rang").types == ("class",)


@pytest.mark.parametrize(
    "code", ["", " ", "nothing_of_that_name.x", "batch[0].", "f().", "1.", "broken.x", "model[", "'mod"]
)
def test_where_nothing_is_known_nothing_is_offered(code: str) -> None:
    assert ask(code).matches == ()


def test_private_names_are_offered_only_when_asked_for() -> None:
    assert not any(name.startswith("_") for name in ask("model.").matches)
    assert "__class__" in ask("model.__").matches


def test_answers_are_bounded() -> None:
    many = {f"n{i:05}": i for i in range(5000)}
    assert len(complete("n", 1, many).matches) == 200


def test_only_what_stands_before_the_cursor_counts() -> None:
    assert complete("modxyz", 3, NAMES) == Completed(("mode", "model"), 0, 3, ("str", "Sequential"))


def test_nothing_of_the_users_is_run() -> None:
    ask("odd.loud.re")
    introspect("odd", NAMES)
    assert "A property's words." in introspect("odd.loud", NAMES)
    assert Odd.looked == 0


# ---------------------------------------------------------------- what a name is


def test_a_function() -> None:
    text = introspect("step", NAMES)
    assert "Signature: step(batch: 'int', *, lr: 'float' = 0.1) -> 'float'" in text
    assert "Docstring: One step." in text
    assert "return batch * lr" not in text
    assert "return batch * lr" in introspect("step", NAMES, 1)


def test_a_tensor_says_what_it_is_without_its_values() -> None:
    assert introspect("w", {"w": torch.ones(2, 3, requires_grad=True)}).splitlines() == [
        "Type:      torch.Tensor",
        "Value:     float32 [2, 3] on cpu, requires grad",
    ]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (3, "Value:     3"),
        ("a" * 5000, "…"),
        ([1, 2], "Length:    2"),
        (None, "Value:     None"),
        (2.5, "Value:     2.5"),
    ],
)
def test_values_that_are_small_are_told(value: object, line: str) -> None:
    text = introspect("x", {"x": value})
    assert line in text
    assert len(text) < 3000


@pytest.mark.parametrize("name", ["nothing", "model.nothing", "broken.x", "batch[0]", ""])
def test_a_name_that_is_not_there(name: str) -> None:
    assert introspect(name, NAMES) == ""
