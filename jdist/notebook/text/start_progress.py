"""Start line: how far a cluster's start has come, in one place on the screen."""

from __future__ import annotations

import html
import time
from collections.abc import Callable

from jdist.client.lifecycle.start import describe_missing
from jdist.core.messages.status import ClusterFacts
from jdist.notebook.output.display import describe_start
from jdist.notebook.output.screen import Screen, Shown, plain
from jdist.notebook.text import progress_text

_EVERY = 0.5
"""Seconds between two changes."""
_NODES, _RANKS, _FORMING = 0.2, 0.7, 0.95
"""Shares of the bar: nodes that are here, ranks that are up; and where it stands while the world is formed."""


def start_part(facts: ClusterFacts) -> float:
    """How much of a start is done, from 0 to 1. A node that is not here is taken to bring as many ranks as others."""
    if facts.phase == "ready":
        return 1.0
    if facts.phase == "forming":
        return _FORMING
    here = sum(bool(host) for host in facts.hostnames)
    missing = facts.nnodes - here
    ranks = sum(facts.nproc_per_node) + missing * max([1, *facts.nproc_per_node])
    return _NODES * here / max(1, facts.nnodes) + _RANKS * facts.ready / max(1, ranks)


class StartLine:
    """Replaced as the start goes on, at most twice a second; ends as the line that says what has been started."""

    def __init__(self, screen: Screen, timeout: float | None, clock: Callable[[], float] = time.monotonic):
        self._screen = screen
        self._until = f", waiting up to {timeout:.0f} s" if timeout else ", waiting as long as it takes"
        self._clock = clock
        self._began = clock()
        self._next = self._began
        self._shown: Shown | None = None

    def note(self, facts: ClusterFacts, waiting: str) -> None:
        """What is known now; ``waiting`` is what the launcher waits for, in its words."""
        now = self._clock()
        if not self._screen.is_live or now < self._next:
            return
        self._next = now + _EVERY
        more = self._until if "" in facts.hostnames else ""
        text = describe_start(facts, now - self._began, describe_missing) + more
        drawn = progress_text.draw("starting", start_part(facts), text)
        if waiting:
            drawn["text/plain"] += f"\n{waiting}"
            drawn["text/html"] += f"<div>{html.escape(waiting)}</div>"
        self._show(drawn)

    def end(self, facts: ClusterFacts, seconds: float) -> None:
        """It is there."""
        text = describe_start(facts, seconds, describe_missing)
        if self._shown is None:
            self._screen.show(plain(text))
        else:
            self._show({**plain(text), "text/html": f"<div>{html.escape(text)}</div>"})

    def _show(self, bundle: dict[str, str]) -> None:
        if self._shown is None:
            self._shown = self._screen.show(bundle)
        else:
            self._shown.update(bundle)
