"""Moving: a line that shows how far a transfer has come, for those that take long enough to be looked at."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from jdist.core.quantities import format_bytes
from jdist.notebook.output.screen import Screen, Shown, plain
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
        self._shown: Shown | None = None
        self._lock = threading.Lock()
        self._is_over = False
        self._last = (0, 0)
        """Bytes done and in total, as they were said last."""
        self._moved = 0
        """Over all parts of what is moved part by part."""
        self._past: list[tuple[float, int]] = [(self._began, 0)]

    def note(self, what: str, done: int, total: int) -> None:
        """Bytes moved so far; called from the client's threads. Less than before: the next part has begun."""
        with self._lock:
            now = self._clock()
            self._moved += done - self._last[0] if done >= self._last[0] else done
            self._last = (done, total)
            if self._is_over or not self._screen.is_live or now < self._next:
                return
            self._next = now + _EVERY
            bundle = progress_text.draw(
                what, done / total if total else 1.0, progress_text.transfer(done, total, self._rate(now))
            )
            if self._shown is None:
                self._shown = self._screen.show(bundle)
            else:
                self._shown.update(bundle)

    def _rate(self, now: float) -> float:
        self._past = [(at, moved) for at, moved in self._past if at > now - _RECENT] or self._past[-1:]
        at, moved = self._past[0]
        self._past.append((now, self._moved))
        return (self._moved - moved) / (now - at) if now > at else 0.0

    def finish(self, text: str) -> None:
        """All is done: ``text`` says what."""
        with self._lock:
            self._is_over = True
            self._end(progress_text.total_line(text, self._moved, self._clock() - self._began) if self._shown else text)

    def _end(self, text: str) -> None:
        if self._shown is None:
            self._screen.show(plain(text))
        else:
            self._shown.update({**plain(text), "text/html": f"<div>{html.escape(text)}</div>"})
            self._shown = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """One that did not finish says how far it came."""
        with self._lock:
            if not self._is_over and self._shown is not None:
                done, total = self._last
                self._end(f"stopped at {format_bytes(done)} of {format_bytes(total)}")
            self._is_over = True
