"""Watch: this user's clusters, found by their files, each with an onlooker; what can be asked of them and done to them.

Everything here lives on the client's loop, in a thread of its own: a cluster that hangs never holds up the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Struct

from jdist.client import find
from jdist.client.cluster import AsyncCluster
from jdist.core.errors import ConnectionLost, UsageError
from jdist.server.event_feed import News
from jdist.server.follower import Onlooker
from jdist.server.pending_starts import KIND, Starts
from jdist.server.policy import Policy
from jdist.server.snapshots import Picture, summary
from jdist.wire.transport.keys import Connection

T = TypeVar("T")

_GLANCE = 0.5
"""Seconds between two glances at the directory's time; a change there wakes nobody."""
_RESCAN = 2.0
"""Seconds after which it is read again while a cluster in it cannot be attached to, since it may come back."""
_ORPHANED = "its controller is gone; while its ranks wait for another, it can be started again with every name kept"


class _Found(Struct):
    """What lies in the runtime directory."""

    running: dict[str, Connection]
    restartable: dict[str, Connection]
    unreadable: dict[str, str]
    is_all: bool
    """False if there are files of which nothing can be said yet: a controller is on its way in or out."""


class Roster:
    """This user's clusters. ``emit`` gets events, see events.yaml; ``is_watched`` and ``on_running`` as in Onlooker."""

    def __init__(
        self,
        policy: Policy,
        emit: Callable[[Picture], None],
        is_watched: Callable[[], bool],
        on_running: Callable[[], None],
    ):
        self.policy = policy
        self._is_watched = is_watched
        self._on_running = on_running
        self._onlookers: dict[str, Onlooker] = {}
        self._others: dict[str, Picture] = {}
        """Of clusters that cannot be attached to."""
        self._is_settled = False
        """Nothing changes but by the directory's change or an onlooker's word."""
        self._kick = asyncio.Event()
        self._news = News(self.picture, emit)
        self._starts = Starts(lambda name, notice: self._news.tell(name, False, notice), self._check_size)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._following = asyncio.ensure_future(self._follow())

    # ------------------------------------------------------------ what there is

    def picture(self, name: str) -> Picture | None:
        """How the cluster called ``name`` is now; None if there is none."""
        known = self._onlookers[name].picture if name in self._onlookers else self._others.get(name)
        return self._starts.picture(name, known) if name in self._starts else known

    async def list(self) -> list[Picture]:
        """All of them, without their ranks."""
        names = sorted({*self._onlookers, *self._others, *self._starts.names})
        found = [self.picture(name) or {} for name in names]
        return [{key: value for key, value in each.items() if key != "ranks"} for each in found]

    async def detail(self, name: str) -> Picture | None:
        """All that can be known of a cluster now; None if there is none."""
        if name not in self._onlookers:
            return self.picture(name)
        found = await self._onlookers[name].detail()
        return self._starts.picture(name, found) if name in self._starts else found

    async def ranks_here(self) -> int:
        """Ranks of all clusters together."""
        return sum(each.world_size for each in self._onlookers.values())

    # ------------------------------------------------------------ what can be done

    async def start(self, asked: dict[str, Any]) -> str:
        """Begin a start; the cluster's name. Raises UsageError."""
        return await self._starts.begin(self.policy.complete(asked, await self.ranks_here()))

    async def act(self, name: str, what: Callable[[AsyncCluster], Awaitable[T]], within: float) -> T | None:
        """Do something with a cluster. Raises UsageError, ConnectionLost, LaunchError.

        None if it is still under way after ``within`` seconds: it goes on, and what becomes of it is told as news.
        """

        async def done() -> T:
            return await what(self._attached(name))

        task = asyncio.ensure_future(done())
        ended, _ = await asyncio.wait([task], timeout=within)
        if ended:
            return task.result()
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended_late(name, task))
        return None

    def _ended_late(self, name: str, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._news.tell(name, True, str(error))

    def _attached(self, name: str) -> AsyncCluster:
        onlooker = self._onlookers.get(name)
        if onlooker is None or onlooker.cluster is None or onlooker.cluster.link.lost:
            shown = self.picture(name) or {}
            raise ConnectionLost(f"cluster {name} is {shown.get('state', 'gone')}: {shown.get('reason', '')}")
        return onlooker.cluster

    async def stop(self, name: str, within: float) -> bool:
        """End a cluster, give its start up, or forget that its start has failed. Raises JdistError.

        False if it is still under way after ``within`` seconds.
        """
        if name in self._starts:
            await self._starts.end(name)
            return True
        state = (self.picture(name) or {}).get("state")
        if state == "foreign":
            raise UsageError(f"cluster {name} is another version's: that one's jdist stop {name} ends it")
        if state == "orphaned":
            cluster = await AsyncCluster.attach(name, kind=KIND)
            await cluster.stop()
            self._kick.set()
            return True

        async def stop(cluster: AsyncCluster) -> bool:
            await cluster.stop()
            self._kick.set()
            return True

        return bool(await self.act(name, stop, within))

    async def revive(self, name: str) -> None:
        """Start the controller of a cluster again if it has died. Raises JdistError."""
        cluster = await AsyncCluster.attach(name, kind=KIND)
        await cluster.detach()
        self._kick.set()

    async def close(self) -> None:
        """Let go of all clusters; they live on, but for those whose start is under way."""
        self._following.cancel()
        await asyncio.wait([self._following])
        await self._starts.close()
        self._news.close()
        for task in self._tasks:
            task.cancel()
        for onlooker in self._onlookers.values():
            await onlooker.close()

    # ------------------------------------------------------------ finding them

    async def _follow(self) -> None:
        while True:
            seen = await asyncio.to_thread(_changed_at)
            self._kick.clear()
            self._is_settled = False
            with contextlib.suppress(OSError):  # what cannot be read now is read again
                await self._take(await asyncio.to_thread(_find))
            await self._until_changed(seen)

    async def _until_changed(self, seen: int) -> None:
        """Until the directory changes, an onlooker has lost its cluster, or a cluster may be back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._is_settled else _RESCAN):
                while await asyncio.to_thread(_changed_at) == seen:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._kick.wait(), _GLANCE)
                        return

    async def _take(self, found: _Found) -> None:
        for name, connection in found.running.items():
            known = self._onlookers.get(name)
            if known is not None and (known.is_over or known.connection != connection):
                await self._onlookers.pop(name).close()
            if name not in self._onlookers:
                self._onlookers[name] = Onlooker(connection, self._hear, self._is_watched, self._on_running)
        for name in self._onlookers.keys() - found.running.keys():
            await self._onlookers.pop(name).close()
        self._others = {name: summary(name, "foreign", reason=why) for name, why in found.unreadable.items()}
        for name, c in found.restartable.items():
            self._others[name] = summary(name, "orphaned", cluster=c.cluster, version=c.version, reason=_ORPHANED)
        self._is_settled = found.is_all and not self._others
        for name in {*self._news.names, *self._onlookers, *self._others}:
            self._news.tell(name)

    def _hear(self, name: str, is_news: bool, notice: str) -> None:
        if name in self._onlookers and self._onlookers[name].is_over:
            self._kick.set()
        self._news.tell(name, is_news, notice)

    def _check_size(self, name: str, world_size: int) -> None:
        others = sum(each.world_size for each in self._onlookers.values() if each.name != name)
        self.policy.check_ranks(others + world_size)


def _changed_at() -> int:
    """When the directory changed last; 0 while there is none."""
    try:
        return os.stat(find.directory()).st_mtime_ns
    except OSError:
        return 0


def _find() -> _Found:
    running, restartable, unreadable = find.connections(), find.restartable(), find.unreadable()
    there = {path.stem.removeprefix("jdist-") for path in find.directory().glob("jdist-*.json")}
    return _Found(running, restartable, unreadable, there <= {*running, *restartable, *unreadable})
