"""Sets, pickled in sorted order, because the order in which Python iterates a set differs between processes.

The C pickler asks for an object's persistent id before anything else, and only there a set can be intercepted.
"""

import pickle
from collections.abc import Collection
from enum import Enum
from typing import Any

import torch

_COMPARABLE = (str, bytes, int)  # Types whose values can be sorted.
_PRINTED = (bool, float, complex, type(None), torch.dtype, torch.device)  # Types whose values are sorted by their repr.


class SortedSets:
    """The sets that one pickler has met."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._sets: list[Any] = []  # Held, so that their ids stay theirs.

    def persistent_id(self, obj: Any) -> Any:
        """What stands for the set: its number, where it first occurs with its type and elements.

        None for anything else, including sets with elements that cannot be sorted the same way in every process.
        """
        if type(obj) not in (set, frozenset):
            return None
        if id(obj) in self._numbers:
            return self._numbers[id(obj)], None, ()
        if len(obj) < 2 or (elements := _sorted(obj)) is None:
            return None
        number = self._numbers[id(obj)] = len(self._sets)
        self._sets.append(obj)
        return number, type(obj), elements


def _sorted(elements: Collection[Any]) -> tuple[Any, ...] | None:
    if any(all(type(each) is kind for each in elements) for kind in _COMPARABLE):
        return tuple(sorted(elements))
    try:
        return tuple(sorted(elements, key=_key))
    except TypeError:
        return None


def _key(element: Any) -> tuple[Any, ...]:
    """A sort key that also works for elements of different types. Raises TypeError for types that have none."""
    kind = type(element)
    of = kind.__qualname__
    if kind in _COMPARABLE:
        return of, element
    if kind in _PRINTED:
        return of, repr(element)
    if kind is tuple:
        return of, tuple(map(_key, element))
    if kind is frozenset:
        return of, tuple(sorted(map(_key, element)))
    if isinstance(element, Enum):
        return f"{kind.__module__}.{of}", element.name
    if isinstance(element, type):
        return "type", f"{element.__module__}.{element.__qualname__}"
    raise TypeError(f"elements of type {of} cannot be sorted")


class SetUnpickler(pickle.Unpickler):
    """Reads what a pickler with :class:`SortedSets` has written."""

    def __init__(self, file: Any):
        super().__init__(file)
        self._sets: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        number, kind, elements = pid
        if kind is not None:
            self._sets[number] = kind(elements)
        return self._sets[number]
