"""PendingConnections: connections that have not proved anything yet. There is room for so many; the oldest makes room.

A flood of strangers costs a bounded number of descriptors; whoever has something to say says it within milliseconds,
and is a newcomer no more before so many others have come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

MOST = 256


class PendingConnections:
    """Keeps them in the order in which they came."""

    def __init__(self, most: int = MOST):
        self._most = most
        self._ends: dict[int, Callable[[], object]] = {}
        self._numbers = itertools.count()

    def enter(self, end: Callable[[], object]) -> int:
        """Another one, ended by ``end``; its number, for :meth:`leave`. The oldest is ended if there are too many."""
        if len(self._ends) >= self._most:
            oldest = next(iter(self._ends))
            self._ends.pop(oldest)()
        number = next(self._numbers)
        self._ends[number] = end
        return number

    def leave(self, number: int) -> None:
        """It is a newcomer no more: it has proved itself, or ended. May be called again."""
        self._ends.pop(number, None)

    def __len__(self) -> int:
        return len(self._ends)
