"""Visibility: whether a browser still shows the panel. A hidden Play widget ticks there while that matters.

The kernel is not informed when a page is closed, and what it sends then is lost; a core widget's ticks show it.
"""

import time
from collections.abc import Callable
from typing import Any

import ipywidgets

from jdist.notebook.panel.part import ParentlessContext

_TICK = 5.0  # Seconds between two ticks.
_PATIENCE = 15.0  # Seconds without a tick after which the panel counts as hidden.


class Visibility:
    """``widget`` is part of the panel. Without ``can_tick()`` (ticks can arrive now) the panel counts as visible.

    ``on_return`` is called when the panel becomes visible again.
    """

    def __init__(
        self,
        can_tick: Callable[[], bool],
        on_return: Callable[[], None],
        context: ParentlessContext,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._can_tick = can_tick
        self._on_return = on_return
        self._context = context
        self._clock = clock
        self._ticked_at = clock()
        layout = ipywidgets.Layout(display="none")
        self.widget: Any = ipywidgets.Play(interval=int(_TICK * 1000), max=1_000_000_000, layout=layout)
        self.widget.observe(self._tick, "value")

    def _tick(self, _: object) -> None:
        was_visible = self.is_visible()
        self._ticked_at = self._clock()
        if not was_visible:
            self._on_return()

    def begin(self) -> None:
        """Start the ticks."""
        self._ticked_at = self._clock()
        self.probe()

    def probe(self) -> None:
        """Make a page that was loaded meanwhile begin to tick at once."""
        self._set_playing(False)
        self._set_playing(True)

    def end(self) -> None:
        """Stop the ticks."""
        self._set_playing(False)

    def _set_playing(self, is_playing: bool) -> None:
        self._context.run(setattr, self.widget, "playing", is_playing)

    def is_visible(self) -> bool:
        """Whether a browser shows the panel, or that cannot be known."""
        return not self._can_tick() or self._clock() - self._ticked_at < _PATIENCE
