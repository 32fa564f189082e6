"""Holders: whatever may hold an object is pointed at another one, or named."""

from __future__ import annotations

import functools
import gc
import weakref
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jdist.worker.groups.rebind import Replacement


class Handle:
    """As a process group is for Python: an object that the garbage collector does not track."""

    __slots__ = ("__weakref__",)


class Slotted:
    __slots__ = ("_Slotted__private", "group")

    def __init__(self, group: object):
        self.group = group
        self._Slotted__private = [group]


@dataclass(frozen=True, slots=True)
class Frozen:
    group: object
    pair: tuple[object, int]


Point = namedtuple("Point", "x group")  # noqa: PYI024 — as users write it


class Plain:
    def __init__(self, group: object):
        self.group = group
        self.nested = {"a": [(1, (2, group))]}


def with_defaults(group: object) -> Callable[..., object]:
    def function(x: int, group: object = group, *, other: object = group) -> object:
        return group, other

    return function


def closure(group: object) -> Callable[[], object]:
    return lambda: (group, group)


def in_class(group: object) -> type:
    return type("Holder", (), {"group": group, "pair": (1, group)})


def held_by(holder: Any, read: Callable[[Any], list[object]]) -> Callable[[object], tuple[Any, Callable[[], Any]]]:
    def make(handle: object) -> tuple[Any, Callable[[], list[object]]]:
        made = holder(handle)
        return made, lambda: read(made)

    return make


HOLDERS = {
    "a list": held_by(lambda h: [1, h], lambda x: [x[1]]),
    "a deque": held_by(lambda h: deque([h, 1]), lambda x: [x[0]]),
    "a dict": held_by(lambda h: {"a": h}, lambda x: [x["a"]]),
    "a key": held_by(lambda h: {0: 1, h: 2, 3: 4}, lambda x: [list(x)[1]]),
    "a set": held_by(lambda h: {h}, list),
    "tuples in a list": held_by(lambda h: [(1, (h, 2))], lambda x: [x[0][1][0]]),
    "a named tuple": held_by(lambda h: {"p": Point(1, h)}, lambda x: [x["p"].group]),
    "a frozenset": held_by(lambda h: [frozenset([h])], lambda x: list(x[0])),
    "defaults": held_by(with_defaults, lambda f: [*f(1)]),
    "a closure": held_by(closure, lambda f: [*f()]),
    "a partial": held_by(
        lambda h: functools.partial(dict, [(1, h)], group=h), lambda f: [f.args[0][0][1], f()["group"]]
    ),
    "an instance": held_by(Plain, lambda x: [x.group, x.nested["a"][0][1][1]]),
    "slots": held_by(Slotted, lambda x: [x.group, x._Slotted__private[0]]),
    "a frozen dataclass": held_by(lambda h: Frozen(h, (h, 1)), lambda x: [x.group, x.pair[0]]),
    "a class": held_by(in_class, lambda c: [c.group, c.pair[1]]),
    "a weak key": held_by(lambda h: weakref.WeakKeyDictionary({h: 1}), list),
    "a weak set": held_by(lambda h: weakref.WeakSet([h]), list),
}


def test_every_holder_is_pointed_at_the_new_object() -> None:
    for _ in range(2):  # what was found by a search is known the second time
        old, new = [Handle()], Handle()
        held = {kind: make(old[0]) for kind, make in HOLDERS.items()}
        gc.collect()  # it stops tracking tuples and dicts in which nothing is tracked
        before = {kind: {*read()} for kind, (_, read) in held.items()}
        assert before == {kind: {old[0]} for kind in HOLDERS}
        del before
        assert Replacement(old, [new]).run(()) == []
        after = {kind: {*read()} for kind, (_, read) in held.items()}
        assert after == {kind: {new} for kind in HOLDERS}


def test_what_is_suspended_is_named() -> None:
    def generator(group: object) -> Iterator[object]:
        yield 1
        yield group

    old = [Handle()]
    waiting = generator(old[0])
    next(waiting)
    (said,) = Replacement(old, [Handle()]).run(())
    assert said == "the suspended test_what_is_suspended_is_named.<locals>.generator()"
    waiting.close()


def test_nothing_is_searched_where_every_reference_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replacement, "_hidden", lambda _: pytest.fail("searched"))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("walked all that was imported"))
    old, new = [Handle()], Handle()
    holder = [1, old[0], {"a": old[0]}]  # the collector does not know the dict
    Replacement(old, [new]).run([holder[2]])
    assert holder == [1, new, {"a": new}]


@pytest.mark.parametrize("kind", ["list", "dict", "set"])
def test_containers_may_change_while_they_are_searched(kind: str) -> None:
    """As by a thread of the user's, which goes on while the world is formed again."""
    old, new = [Handle()], Handle()
    holder: Any = {"list": [0, old[0]], "dict": {0: 0, 1: old[0]}, "set": {0, old[0]}}[kind]

    class Changing(Replacement):
        def replacement(self, value: Any) -> Any:
            {"list": lambda: holder.append(9), "dict": lambda: holder.update({9: 9}), "set": lambda: holder.add(9)}[
                kind
            ]()
            return super().replacement(value)

    assert Changing(old, [new]).run([holder]) == []
    assert new in (holder.values() if kind == "dict" else holder)
    assert 9 in holder
