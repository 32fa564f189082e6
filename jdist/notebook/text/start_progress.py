"""The progress of a cluster's start, in one place on the screen."""

from __future__ import annotations

import html
import time
from collections.abc import Callable

from jdist.client.lifecycle.start import describe_missing
from jdist.core.messages.status import ClusterFacts
from jdist.notebook.output.screen import Replaceable, Screen, line, plain
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


def describe_start(facts: ClusterFacts, seconds: float) -> str:
    """The line that is shown while a cluster starts."""
    if facts.phase != "ready":
        return f"cluster {facts.name}: {describe_missing(facts)} · {seconds:.0f} s"
    ranks = sum(facts.nproc_per_node)
    nnodes = facts.topology.nnodes
    nodes = f"{nnodes} node{'' if nnodes == 1 else 's'}"
    hosts = ", ".join(sorted(set(facts.hostnames)))
    return f"cluster {facts.name}: {ranks} ranks on {nodes} ({hosts}) · {facts.backend} · ready in {seconds:.1f} s"


class StartProgressLine:
    """Replaced as the start goes on, at most twice a second; ends as the line that says what has been started."""

    def __init__(self, screen: Screen, timeout: float | None, clock: Callable[[], float] = time.monotonic):
        self._screen = screen
        self._output = Replaceable(screen)
        self._until = f", waiting up to {timeout:.0f} s" if timeout else ", waiting as long as it takes"
        self._clock = clock
        self._began = clock()
        self._next = self._began

    def update(self, facts: ClusterFacts, waiting: str) -> None:
        """Show the cluster as it is now; ``waiting`` says what its launcher waits for."""
        now = self._clock()
        if not self._screen.is_live or now < self._next:
            return
        self._next = now + _EVERY
        more = self._until if "" in facts.hostnames else ""
        text = describe_start(facts, now - self._began) + more
        drawn = progress_text.draw("starting", start_part(facts), text)
        if waiting:
            drawn["text/plain"] += f"\n{waiting}"
            drawn["text/html"] += f"<div>{html.escape(waiting)}</div>"
        self._output.show(drawn)

    def finish(self, facts: ClusterFacts, seconds: float) -> None:
        """Say that the cluster is ready, ``seconds`` after the start began."""
        text = describe_start(facts, seconds)
        self._output.show(line(text) if self._output.is_shown else plain(text))
