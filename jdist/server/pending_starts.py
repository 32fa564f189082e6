"""Pending starts: clusters that are being started from a browser, and those whose start has failed."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from jdist.client import find
from jdist.client.cluster import AsyncCluster
from jdist.client.lifecycle.start import Progress, Waiting, describe_missing
from jdist.core.errors import JdistError, UsageError
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.server.snapshots import ClusterSnapshot, redacted

KIND = "browser"  # Kind of a client that starts a cluster for a browser, and detaches from it once it is formed.
_UNDO = 30.0  # Seconds for a cancelled start to end what it began.


class _Start(Struct):
    began: float
    task: asyncio.Task[None] | None = None
    text: str = ""  # What the start waits for.
    error: str = ""


class PendingStarts:
    """Starts by name; calls ``update(name, notice)`` when one makes progress. Lives on the client's loop."""

    def __init__(self, update: Callable[[str, str], None], check: Callable[[str, int], None]):
        self._update = update
        self._check = check
        self._starts: dict[str, _Start] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._starts

    @property
    def names(self) -> list[str]:
        return list(self._starts)

    async def begin(self, arguments: dict[str, Any]) -> str:
        """Begin a start, and return its name, which is free. Raises UsageError."""
        taken = await asyncio.to_thread(lambda: find.connections() | find.restartable())
        used = {*taken, *(name for name, start in self._starts.items() if not start.error)}
        name = arguments["name"] or next(f"c{n}" for n in itertools.count(1) if f"c{n}" not in used)
        if name in used:
            raise UsageError(f"a cluster called {name} runs already; choose another name")
        start = self._starts[name] = _Start(time.monotonic())
        start.task = asyncio.ensure_future(self._start(start, {**arguments, "name": name}))
        self._update(name, "")
        return str(name)

    async def _start(self, start: _Start, arguments: dict[str, Any]) -> None:
        name = arguments["name"]

        def handle_progress(progress: Progress) -> None:
            match progress:
                case ClusterFacts():
                    start.text = describe_missing(progress)
                case Waiting(text) if text:
                    start.text = text
                case Notice():
                    self._update(name, str(progress))
            self._update(name, "")

        try:
            cluster = await AsyncCluster.start(kind=KIND, on_progress=handle_progress, **arguments)
            try:
                self._check(name, cluster.world_size)  # nodes may have brought more ranks than are allowed
            except UsageError:
                await cluster.stop()
                raise
            await cluster.detach()
        except (JdistError, OSError) as e:
            start.error = redacted(str(e))
            self._update(name, f"cluster {name} could not be started: {e}")
        else:
            self._starts.pop(name, None)
            self._update(name, "")

    async def end(self, name: str) -> None:
        """Cancel a start, or forget one that has failed."""
        start = self._starts.get(name)
        if start is not None and start.task is not None and not start.task.done():
            start.task.cancel()
            await asyncio.wait([start.task], timeout=_UNDO)
        self._starts.pop(name, None)
        self._update(name, "")

    async def close(self) -> None:
        """Cancel all that are under way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UNDO):
                await asyncio.gather(*(self.end(name) for name in self.names))

    def snapshot(self, name: str, known: ClusterSnapshot | None) -> ClusterSnapshot | None:
        """What is ``known`` of the cluster already, with its start if there is one."""
        if name not in self._starts:
            return known
        start = self._starts[name]
        state = "failed" if start.error else "starting"
        shown = known or ClusterSnapshot(name=name, state=state, reason=start.error)
        return replace(shown, starting=None if start.error else start.text)
