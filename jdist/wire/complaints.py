"""Complaints: a line in the log about whatever was dropped, and no more lines than somebody reads.

Who sends rubbish sends much of it: past the first few, what is dropped within a while is counted in one line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_MOST = 20
"""Lines within a while."""
_WHILE = 10.0
_LONGEST = 400
"""Characters of one line: part of it may be a stranger's own words."""


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Complaints:
    """Says what was dropped, each line beginning with ``who``; ``write`` gets the lines."""

    def __init__(self, who: str, write: Callable[[str], object] = _print, clock: Callable[[], float] = time.monotonic):
        self._who = who
        self._write = write
        self._clock = clock
        self._began = clock() - _WHILE
        self._said = 0
        self._unsaid = 0

    def say(self, text: str) -> None:
        """One line; what a log or terminal would obey in it is spelled out."""
        now = self._clock()
        if now - self._began >= _WHILE:
            if self._unsaid:
                self._write(f"{self._who}: … and {self._unsaid} more like that")
            self._began, self._said, self._unsaid = now, 0, 0
        if self._said >= _MOST:
            self._unsaid += 1
            return
        self._said += 1
        safe = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_LONGEST])
        self._write(f"{self._who}: {safe}{'…' if len(text) > _LONGEST else ''}")
