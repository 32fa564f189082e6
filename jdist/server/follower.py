"""Onlooker: one cluster, looked at by the server: attached to, surveyed when it says that something has moved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from jdist.client.cluster import AsyncCluster
from jdist.core.errors import ConnectionLost, ProtocolError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.observation import Observation
from jdist.core.messages.status import ClusterFacts, Notice, RunsChanged, StatusReport, Stopped
from jdist.server import snapshots
from jdist.server.snapshots import Picture
from jdist.wire.transport.keys import Connection

_PATIENCE = 3.0
"""Seconds for a controller to answer; one that does not is said to be silent."""
_LOOK = 2.0
"""Seconds for ranks to say what they do."""
_BETWEEN = 0.5
"""Seconds from one survey to the next, at the least."""
_LIVE = 1.0
"""The same at the most, while cells run and somebody watches."""
_PULSE = 10.0
"""Seconds from one survey to the next while nothing moves, by which a controller that hangs is noticed."""
_AGAIN = 2.0
"""Seconds until one that was silent is asked again."""
_RANKS_A_SECOND = 256
"""Ranks that are asked in a second what they do; a larger world is asked less often."""


class Onlooker:
    """Keeps ``picture`` up to date and calls ``tell(name, is_news)``; lives on the client's loop.

    ``is_news``: something has happened, although perhaps it looks as it did before. ``is_watched`` says whether
    somebody wants to know what ranks do while cells run; ``on_running`` is called as long as some do.
    """

    def __init__(
        self,
        connection: Connection,
        tell: Callable[[str, bool, str], None],
        is_watched: Callable[[], bool],
        on_running: Callable[[], None],
    ):
        self.connection = connection
        self.cluster: AsyncCluster | None = None
        self.is_over = False
        """The cluster is gone, or its controller has died."""
        self.is_foreign = False
        """It does not speak our protocol."""
        self.picture = self._summary("silent", "it has not answered yet")
        self._tell = tell
        self._is_watched = is_watched
        self._on_running = on_running
        self._moved = asyncio.Event()
        self._following = asyncio.ensure_future(self._follow())

    @property
    def name(self) -> str:
        return self.connection.name

    @property
    def world_size(self) -> int:
        """Ranks that it has, as far as is known."""
        return int(self.picture.get("world_size", 0))

    async def detail(self) -> Picture:
        """All that can be known now; within some seconds, also of a cluster that does not answer."""
        if self.cluster is None or self.cluster.link.lost:
            return self.picture
        try:
            self.picture = self._survey(*await self._ask(self.cluster, is_close=True))
        except (TimeoutError, ConnectionLost):
            self.picture = self._silent()
        self._tell(self.name, False, "")  # else what comes later would be compared to what others have been shown
        return self.picture

    async def close(self) -> None:
        """Let go of the cluster."""
        self._following.cancel()
        await asyncio.wait([self._following])
        if self.cluster is not None:
            await self.cluster.detach()

    # ------------------------------------------------------------ the life of an onlooker

    async def _follow(self) -> None:
        while not self.is_over and not self.is_foreign:
            if await self._attach() and self.cluster is not None:
                await self._look_on(self.cluster)
                self.is_over = True
            self._tell(self.name, False, "")
            if not self.is_over:
                await asyncio.sleep(_AGAIN)

    async def _attach(self) -> bool:
        try:
            self.cluster = await asyncio.wait_for(AsyncCluster.observe(self.connection), _PATIENCE)
        except ProtocolError as e:
            self.is_foreign = True
            self.picture = self._summary("foreign", str(e))
            return False
        except (ConnectionLost, TimeoutError, OSError):
            self.picture = self._summary("silent", f"its controller (process {self.connection.pid}) does not answer")
            return False
        self.cluster.watch(self._hear)
        return True

    def _hear(self, message: Message) -> None:
        if isinstance(message, Notice):
            self._tell(self.name, True, message.text)
        if isinstance(message, Notice | ClusterFacts | RunsChanged | Stopped):
            self._moved.set()

    async def _look_on(self, cluster: AsyncCluster) -> None:
        while True:
            is_news = self._moved.is_set()
            self._moved.clear()
            await self._refresh(cluster)
            if cluster.link.lost:
                return
            self._tell(self.name, is_news, "")
            await asyncio.sleep(_BETWEEN)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), self._pause())

    async def _refresh(self, cluster: AsyncCluster) -> None:
        try:
            found, looked = await self._ask(cluster, is_close=self._is_curious() and self._is_watched())
        except (TimeoutError, ConnectionLost):
            self.picture = self._silent()
            return
        self.picture = self._survey(found, looked)
        if any(state != "queued" for _, state, _, _ in found.runs):
            self._on_running()

    async def _ask(self, cluster: AsyncCluster, *, is_close: bool) -> tuple[StatusReport, dict[int, Observation]]:
        """``is_close``: ranks are asked what they do also while no cell runs."""
        found = await asyncio.wait_for(cluster.status(), _PATIENCE)
        is_wanted = is_close or (bool(found.runs) and self._is_watched())
        if not is_wanted or found.facts.phase != "ready":
            return found, {}
        try:
            return found, await asyncio.wait_for(cluster.look(timeout=_LOOK), _PATIENCE)
        except (TimeoutError, UsageError):  # ranks that have been removed meanwhile
            return found, {}

    def _is_curious(self) -> bool:
        """Whether ranks that are idle are worth a look: one has said nothing yet, or a cell has just ended."""
        return bool(self.picture.get("runs")) or not all(row["device"] for row in self.picture.get("ranks", ()))

    def _pause(self) -> float:
        if self.picture["state"] == "silent":
            return _AGAIN
        if self.picture.get("runs") and self._is_watched():
            return max(_LIVE, self.world_size / _RANKS_A_SECOND) - _BETWEEN
        return _PULSE

    # ------------------------------------------------------------ pictures

    def _survey(self, found: StatusReport, looked: dict[int, Observation]) -> Picture:
        return self._summary(found.facts.phase) | snapshots.survey(found, looked, self.picture)

    def _silent(self) -> Picture:
        reason = f"its controller (process {self.connection.pid}) has not answered for {_PATIENCE:.0f} s"
        return self.picture | {"state": "silent", "reason": reason}

    def _summary(self, state: str, reason: str = "") -> Picture:
        c = self.connection
        return snapshots.summary(c.name, state, cluster=c.cluster, version=c.version, reason=reason)
