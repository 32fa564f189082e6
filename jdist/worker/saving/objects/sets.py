"""Sets of strings or bytes, pickled in their sorted order: as Python iterates them, each process has its own.

The C pickler asks for an object's persistent id before anything else, and only there a set can be intercepted.
"""

import pickle
from typing import Any

_HASHED_AT_RANDOM = (str, bytes)


class StringSets:
    """The sets that one pickler has met."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._sets: list[Any] = []  # Held, so that their ids stay theirs.

    def persistent_id(self, obj: Any) -> Any:
        """What stands for the set: its number, where it first occurs with its type and elements; None for others."""
        if type(obj) not in (set, frozenset):
            return None
        if id(obj) in self._numbers:
            return self._numbers[id(obj)], None, ()
        if len(obj) < 2 or not any(all(type(each) is kind for each in obj) for kind in _HASHED_AT_RANDOM):
            return None
        number = self._numbers[id(obj)] = len(self._sets)
        self._sets.append(obj)
        return number, type(obj), tuple(sorted(obj))


class SetUnpickler(pickle.Unpickler):
    """Reads what a pickler with :class:`StringSets` has written."""

    def __init__(self, file: Any):
        super().__init__(file)
        self._sets: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        number, kind, elements = pid
        if kind is not None:
            self._sets[number] = kind(elements)
        return self._sets[number]
