"""Lookout: one cluster, looked at for a panel: surveyed when it says that something has moved, and now and then while
cells run; not at all while nothing moves, or while nobody looks at the panel.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from jdist.client.cluster import AsyncCluster
from jdist.core.errors import ConnectionLost, ProtocolError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.observation import Observation
from jdist.core.messages.status import ClusterFacts, Notice, RunsChanged, StatusReport, Stopped
from jdist.notebook.panel.html import Sight
from jdist.notebook.text import remedy_text

_PATIENCE = 3.0
"""Seconds for a controller to answer."""
_LOOK = 2.0
"""Seconds for ranks to say what they do."""
_BETWEEN = 0.5
"""Seconds from one sight to the next, at the least."""
_LIVE = 1.0
"""The same at the most, while cells run and somebody looks."""
_AGAIN = 2.0
"""Seconds until a cluster that was silent is asked again."""
_UNSEEN = 10.0
"""Seconds until it is asked again whether somebody looks, while cells run."""
_RANKS_A_SECOND = 256
"""Ranks that are asked in a second what they do; a larger world is asked less often."""
_NOBODY = "no browser has shown this for a while; it goes on when one does"


class Lookout:
    """Calls ``show(sight)`` on the client's loop, where it lives, at most twice a second and only with what is new.

    ``is_seen()`` says whether somebody looks; it is asked only while cells run. ``on_live`` and ``on_rest`` are called
    when that is going to matter, and when not; ``on_call`` while nobody does. Who returns is told by :meth:`nudge`.
    """

    def __init__(
        self,
        cluster: AsyncCluster,
        show: Callable[[Sight], None],
        is_seen: Callable[[], bool],
        on_live: Callable[[], None],
        on_rest: Callable[[], None],
        on_call: Callable[[], None],
    ):
        self._cluster = cluster
        self._show = show
        self._is_seen = is_seen
        self._on_live = on_live
        self._on_rest = on_rest
        self._on_call = on_call
        self._sight = Sight("connecting", f"connecting to cluster {cluster.name}")
        self._moved = asyncio.Event()
        self._observer: AsyncCluster | None = None
        self._following = asyncio.ensure_future(self._follow())
        self._following.add_done_callback(self._over)

    async def close(self) -> None:
        """Look no more."""
        self._following.cancel()
        await asyncio.wait([self._following])
        await self._let_go()

    def nudge(self) -> None:
        """Somebody looks again."""
        self._moved.set()

    # ------------------------------------------------------------ the life of a lookout

    async def _follow(self) -> None:
        while True:
            observer = await self._attach()
            if observer is not None:
                await self._look_on(observer)
                await self._let_go()
            await self._cluster.revived()
            link = self._cluster.link
            if link.lost:
                self._tell("gone", remedy_text.worded(link.loss()))
                return
            if observer is None:
                await asyncio.sleep(_AGAIN)

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tell("gone", f"the panel failed ({type(error).__name__}: {error}); %dist panel opens another")

    async def _let_go(self) -> None:
        if self._observer is not None:
            await self._observer.detach()
            self._observer = None

    async def _attach(self) -> AsyncCluster | None:
        """A client of its own, that hears of every notebook's runs."""
        try:
            observer = await asyncio.wait_for(AsyncCluster.observe(self._cluster.link.connection), _PATIENCE)
        except (ConnectionLost, ProtocolError, TimeoutError, OSError) as e:
            self._tell("silent", str(e) or "its controller does not answer")
            return None
        self._observer = observer
        observer.watch(self._hear)
        return observer

    def _hear(self, message: Message) -> None:
        if isinstance(message, Notice | ClusterFacts | RunsChanged | Stopped):
            self._moved.set()

    async def _look_on(self, observer: AsyncCluster) -> None:
        while not observer.link.lost:
            if self._sight.state == "paused":
                self._on_call()
            self._moved.clear()
            await self._refresh(observer)
            await asyncio.sleep(_BETWEEN)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), self._pause())

    def _pause(self) -> float | None:
        found = self._sight.found
        match self._sight.state:
            case "silent":
                return _AGAIN
            case "live" if found is not None:
                return max(_LIVE, len(found.ranks) / _RANKS_A_SECOND) - _BETWEEN
            case "paused":
                return _UNSEEN
        return None

    async def _refresh(self, observer: AsyncCluster) -> None:
        try:
            found = await asyncio.wait_for(observer.status(), _PATIENCE)
        except (TimeoutError, ConnectionLost):
            if not observer.link.lost:
                self._tell("silent", f"its controller has not answered for {_PATIENCE:.0f} s")
            return
        if not found.runs:
            self._on_rest()
            self._tell("watching", "", found, await self._look(observer, found))
            return
        if self._sight.state not in ("live", "paused"):
            self._on_live()
        if self._is_seen():
            self._tell("live", "", found, await self._look(observer, found))
        else:
            self._tell("paused", _NOBODY, found)

    async def _look(self, observer: AsyncCluster, found: StatusReport) -> Mapping[int, Observation]:
        alive = [row.rank for row in found.ranks if row.pid and row.state != "cut off"]
        if not alive or found.facts.phase != "ready":
            return {}
        try:
            return await asyncio.wait_for(observer.look(alive, timeout=_LOOK), _PATIENCE)
        except (TimeoutError, ConnectionLost, UsageError):  # ranks that have been removed meanwhile
            return {}

    def _tell(
        self, state: str, note: str, found: StatusReport | None = None, looked: Mapping[int, Observation] | None = None
    ) -> None:
        """Show what is known now; of a cluster that does not answer, what was known last."""
        if found is None:
            found, looked = self._sight.found, self._sight.looked
        sight = Sight(state, note, found, looked or {})
        if sight != self._sight:
            self._sight = sight
            self._show(sight)
