"""Attention: whether a browser still has the panel. A hidden Play widget ticks there while that matters.

The kernel hears nothing when a page is closed, and what it sends then goes nowhere; the tick of a core widget tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ipywidgets

_TICK = 5.0
"""Seconds between two ticks."""
_PATIENCE = 15.0
"""Seconds without a tick after which nobody looks."""


class Attention:
    """``widget`` is part of the panel. ``is_heard``: ticks can arrive now; if not, somebody is taken to look.

    ``on_return`` is called when somebody looks again.
    """

    def __init__(
        self,
        is_heard: Callable[[], bool],
        on_return: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._is_heard = is_heard
        self._on_return = on_return
        self._clock = clock
        self._since = clock()
        self.widget: Any = ipywidgets.Play(
            interval=int(_TICK * 1000), max=1_000_000_000, layout=ipywidgets.Layout(display="none")
        )
        self.widget.observe(self._tick, "value")

    def _tick(self, _: object) -> None:
        was_paid = self.is_paid()
        self._since = self._clock()
        if not was_paid:
            self._on_return()

    def expect(self) -> None:
        """From now on it matters."""
        self._since = self._clock()
        self.call()

    def call(self) -> None:
        """Is somebody there? A page that was loaded meanwhile begins to tick when this changes, at once."""
        self.widget.playing = False
        self.widget.playing = True

    def rest(self) -> None:
        """It does not matter for now."""
        self.widget.playing = False

    def is_paid(self) -> bool:
        """Somebody looks, or it cannot be known."""
        return not self._is_heard() or self._clock() - self._since < _PATIENCE
