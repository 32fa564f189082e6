"""Listing a rank's variables: which names, limits, what is left out, and contents on request."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from jdist.core.messages.values import ListVariables, VariableList
from jdist.wire.values.frames import Unpacker, pack
from jdist.worker.variables import digests
from jdist.worker.variables.listing import VariableLister, delete_names


class Exits:
    def __reduce__(self) -> Any:
        raise SystemExit(3)


def lists(namespace: dict[Any, Any], query: ListVariables | None = None) -> VariableList:
    reported: list[int] = []
    lister = VariableLister(lambda names: [(n, v) for n, v in names.items() if n != "own"])
    found = lister.list(query or ListVariables(), namespace, "", reported.append)
    assert Unpacker(VariableList)(pack(found)) == found  # it can be sent
    return found


def test_names_that_are_listed() -> None:
    found = lists({"b": 1, "a": "x", "own": 3, "_c": 4, "f": len, "torch": torch, "no name": 5, 7: 6})
    assert [each.name for each in found.variables] == ["a", "b"]
    assert found.hidden == ("_c", "f", "torch")
    chosen = lists({"b": 1, "f": len, "_c": 4}, ListVariables("f, _*"))
    assert [each.name for each in chosen.variables] == ["_c", "f"]
    assert chosen.hidden == ()


def test_more_names_than_the_limit_are_counted() -> None:
    found = lists({f"x{i:03}": i for i in range(30)}, ListVariables(most=10))
    assert [each.name for each in found.variables] == [f"x{i:03}" for i in range(10)]
    assert found.left_out == 20


def test_nothing_is_read_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("contents were read")

    monkeypatch.setattr(digests, "chunks", fail)
    monkeypatch.setattr("jdist.worker.variables.listing.describe", fail)
    monkeypatch.setattr("jdist.worker.variables.listing.digests", fail)
    assert lists({"t": torch.ones(3)}).variables[0].mean is None
    assert lists({"t": torch.ones(3)}, ListVariables(numbers=True)).variables[0].problem  # so it would be noticed


def test_contents_on_request() -> None:
    query = ListVariables(numbers=True, digests=True)
    names = {"t": torch.full((4,), 2.0), "inf": torch.tensor([float("inf")]), "n": 1, "bad": Exits(), "f": [1, 2]}
    found = {each.name: each for each in lists(names, query).variables}
    assert (found["t"].mean, found["t"].norm) == (2.0, 4.0)
    assert found["inf"].norm is None
    assert found["t"].digest != found["f"].digest != ""
    assert found["n"].digest == ""
    assert "SystemExit" in found["bad"].problem
    assert found["f"].problem == ""


def test_names_come_and_go_during_a_listing() -> None:
    namespace: dict[Any, Any] = {f"x{i}": i for i in range(300)}
    is_over = threading.Event()

    def change() -> None:
        i = 0
        while not is_over.is_set():
            namespace[f"y{i % 100}"] = i
            namespace.pop(f"y{(i + 50) % 100}", None)
            i += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            assert lists(namespace).variables[0].name == "x0"
    finally:
        is_over.set()
        thread.join(10)


def test_deleting() -> None:
    namespace = {"a": 1, "b": 2}
    assert delete_names(("a", "c"), namespace) == 1
    assert namespace == {"b": 2}
