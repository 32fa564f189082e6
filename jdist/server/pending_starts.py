"""Starts: clusters that are being started from a browser, and those whose start has failed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from jdist.client import find
from jdist.client.cluster import AsyncCluster
from jdist.client.lifecycle.start import Progress, Waiting, describe_missing
from jdist.core.errors import JdistError, UsageError
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.server.snapshots import Picture, safe, summary

KIND = "browser"
"""Of a client that starts a cluster for a browser, and lets go of it when it stands."""
_UNDO = 30.0
"""Seconds for a start that was given up to end what it began."""


class _Start(Struct):
    began: float
    task: asyncio.Task[None] | None = None
    text: str = ""
    """What is waited for."""
    error: str = ""


class Starts:
    """Starts by name; ``tell(name, notice)`` when one has come further. Lives on the client's loop."""

    def __init__(self, tell: Callable[[str, str], None], check: Callable[[str, int], None]):
        self._tell = tell
        self._check = check
        self._starts: dict[str, _Start] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._starts

    @property
    def names(self) -> list[str]:
        return list(self._starts)

    def is_under_way(self, name: str) -> bool:
        return name in self._starts and not self._starts[name].error

    async def begin(self, arguments: dict[str, Any]) -> str:
        """Begin a start; its name, which is free. Raises UsageError."""
        taken = await asyncio.to_thread(lambda: find.connections() | find.restartable())
        used = {*taken, *(n for n in self._starts if self.is_under_way(n))}
        name = arguments["name"] or next(f"c{n}" for n in itertools.count(1) if f"c{n}" not in used)
        if name in used:
            raise UsageError(f"a cluster called {name} runs already; choose another name")
        start = self._starts[name] = _Start(time.monotonic())
        start.task = asyncio.ensure_future(self._start(start, {**arguments, "name": name}))
        self._tell(name, "")
        return str(name)

    async def _start(self, start: _Start, arguments: dict[str, Any]) -> None:
        name = arguments["name"]

        def hear(progress: Progress) -> None:
            match progress:
                case ClusterFacts():
                    start.text = describe_missing(progress)
                case Waiting(text) if text:
                    start.text = text
                case Notice(text=text):
                    self._tell(name, text)
            self._tell(name, "")

        try:
            cluster = await AsyncCluster.start(kind=KIND, on_progress=hear, **arguments)
            await self._keep(name, cluster)
        except (JdistError, OSError) as e:
            start.error = safe(str(e))
            self._tell(name, f"cluster {name} could not be started: {e}")
        else:
            self._starts.pop(name, None)
            self._tell(name, "")

    async def _keep(self, name: str, cluster: AsyncCluster) -> None:
        """Let go of a cluster that stands, unless nodes have brought more ranks than are allowed."""
        try:
            self._check(name, cluster.world_size)
        except UsageError:
            await cluster.stop()
            raise
        await cluster.detach()

    async def end(self, name: str) -> None:
        """Give a start up, or forget one that has failed."""
        start = self._starts.get(name)
        if start is not None and start.task is not None and not start.task.done():
            start.task.cancel()
            await asyncio.wait([start.task], timeout=_UNDO)
        self._starts.pop(name, None)
        self._tell(name, "")

    async def close(self) -> None:
        """Give up all that are under way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UNDO):
                await asyncio.gather(*(self.end(name) for name in self.names))

    def picture(self, name: str, known: Picture | None) -> Picture:
        """The start, over what is ``known`` of the cluster already."""
        start = self._starts[name]
        shown = known or summary(name, "failed" if start.error else "starting", reason=start.error)
        return shown | {"starting": None if start.error else start.text}
