"""The text of the functions that note calls: it hands on what the function it stands in for would have got."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jdist.worker.observe import call_log_codegen

DEFAULT = object()


def both(original: Callable[..., Any]) -> tuple[Callable[..., Any], list[list[Any]]]:
    """A function that stands in for ``original``, and its notes."""
    notes: list[list[Any]] = []
    signature = inspect.signature(original)
    names: dict[str, Any] = {
        "_begun": 0,
        "_transfers": 0,
        "_cells": {__file__},
        "_outwards": None,
        "_add": notes.append,
        "_caller": sys._getframe,
        "_ident": lambda: 7,
        "_now": iter(range(1, 9)).__next__,
        "_left": lambda _: None,
        "_tensor": str,
        "_plain": {int, bool, type(None)},
        "_operation": float,
        "_kept": lambda v: ("kept", v),
        "_original_op": original,
    }
    exec(call_log_codegen.function("op", signature, is_counted=False), names)
    made = names["op"]
    optional = [p for p in signature.parameters.values() if p.default is not p.empty]
    made.__defaults__ = tuple(p.default for p in optional if p.kind is not p.KEYWORD_ONLY)
    made.__kwdefaults__ = {p.name: p.default for p in optional if p.kind is p.KEYWORD_ONLY}
    return made, notes


def plain(tensor: Any, src: Any = DEFAULT, group: Any = None) -> Any:
    return tensor, src, group


def keyword_only(first: Any, /, *, src: Any = DEFAULT, tag: Any = 3) -> Any:
    return first, src, tag


def anything(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


@pytest.mark.parametrize(
    ("original", "args", "kwargs"),
    [
        (plain, (1,), {}),
        (plain, (1, 2, 3), {}),
        (plain, (), {"group": 3, "tensor": 1}),
        (keyword_only, (1,), {}),
        (keyword_only, (1,), {"tag": 9, "src": 2}),
        (anything, (1, 2), {"src": 3}),
    ],
)
def test_arguments_and_defaults_are_handed_on(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    made, notes = both(original)
    assert made(*args, **kwargs) == original(*args, **kwargs)
    assert len(notes) == 1


def test_a_call_that_does_not_fit_says_so_in_the_functions_own_words() -> None:
    made, notes = both(plain)
    with pytest.raises(TypeError, match=r"op\(\) missing 1 required positional argument: 'tensor'"):
        made()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        made(1, nothing=2)
    assert notes == []


def test_a_note_has_its_places_and_what_is_described() -> None:
    made, notes = both(plain)
    made(1, src=2, group=5)
    (note,) = notes
    assert (
        note[call_log_codegen.OP],
        note[call_log_codegen.THREAD],
        note[call_log_codegen.STARTED],
        note[call_log_codegen.ENDED],
    ) == ("op", 7, 1, 2)
    assert note[call_log_codegen.CODE].co_filename == __file__
    assert note[call_log_codegen.WHAT :] == [("kept", 1), None, 2, ("kept", 5)]
    assert call_log_codegen.described(inspect.signature(plain)) == ("tensor", "src", "group")
