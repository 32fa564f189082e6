"""Moving: a line that shows how far a transfer has come, for those that take long enough to be looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from jdist.core.quantities import format_bytes
from jdist.notebook.output.screen import Replaceable, Screen, line, plain
from jdist.notebook.text import progress_text

_FROM = 0.5
"""Seconds before it is shown at all."""
_EVERY = 0.5
"""Between two changes."""
_RECENT = 3.0
"""Seconds of the past that count for the rate."""


class ProgressLine:
    """Shows itself after half a second, and changes at most twice a second. It ends as what :meth:`finish` says.

    On a screen where nothing can be replaced, that is all that is shown.
    """

    def __init__(self, screen: Screen, clock: Callable[[], float] = time.monotonic):
        self._screen = screen
        self._clock = clock
        self._began = clock()
        self._next = self._began + _FROM
        self._output = Replaceable(screen)
        self._lock = threading.Lock()
        self._is_over = False
        self._last = (0, 0)
        """Bytes done and in total, as they were said last."""
        self._moved = 0
        """Over all parts of what is moved part by part."""
        self._past: list[tuple[float, int]] = [(self._began, 0)]

    def update(self, what: str, done: int, total: int) -> None:
        """Bytes moved so far; called from the client's threads. Less than before: the next part has begun."""
        with self._lock:
            now = self._clock()
            self._moved += done - self._last[0] if done >= self._last[0] else done
            self._last = (done, total)
            if self._is_over or not self._screen.is_live or now < self._next:
                return
            self._next = now + _EVERY
            words = progress_text.transfer(done, total, self._rate(now))
            self._output.show(progress_text.draw(what, done / total if total else 1.0, words))

    def _rate(self, now: float) -> float:
        self._past = [(at, moved) for at, moved in self._past if at > now - _RECENT] or self._past[-1:]
        at, moved = self._past[0]
        self._past.append((now, self._moved))
        return (self._moved - moved) / (now - at) if now > at else 0.0

    def finish(self, text: str) -> None:
        """Show that all is done, as ``text`` says, with the total where progress was shown."""
        with self._lock:
            self._is_over = True
            if self._output.is_shown:
                text = progress_text.total_line(text, self._moved, self._clock() - self._began)
                self._output.show(line(text))
            else:
                self._screen.show(plain(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Show how far a transfer came that did not finish."""
        with self._lock:
            if not self._is_over and self._output.is_shown:
                done, total = self._last
                self._output.show(line(f"stopped at {format_bytes(done)} of {format_bytes(total)}"))
            self._is_over = True
