"""Warming: when a node has been idle for a while, imports that its next workers would have to do are done ahead.

Never while a cell runs: what is under way then is stopped, and goes on when the node is idle again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from jdist.agent.processes.kernel import Starter

IDLE = 2.0
"""Seconds without a cell after which a node counts as idle."""


class Warming:
    """Knows which ranks run a cell. ``keep`` runs a coroutine; on the running loop."""

    def __init__(self, starter: Starter, keep: Callable[[Coroutine[Any, Any, None]], None], idle: float = IDLE):
        self.is_wanted = True
        self._starter = starter
        self._keep = keep
        self._idle = idle
        self._busy: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def began(self, ranks: Iterable[int]) -> None:
        """These ranks run a cell."""
        self._busy.update(ranks)
        if self._busy:
            self.stop()
            self._starter.pause()

    def ended(self, rank: int) -> None:
        """This rank runs no cell (any more)."""
        self._busy.discard(rank)
        if not self._busy:
            self.stop()
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._warm)

    def _warm(self) -> None:
        self._timer = None
        self._starter.resume()
        if self.is_wanted:
            self._keep(self._starter.warm())

    def stop(self) -> None:
        """Begin nothing from now on until a rank's cell has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
