"""Follow: keep up with one cluster as an observer, for a notebook's panel and for the Jupyter server."""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from jdist.client.cluster import AsyncCluster
from jdist.core.errors import ConnectionLost, JdistError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.observation import Observation
from jdist.core.messages.status import ClusterFacts, Notice, RunsChanged, StatusReport, Stopped
from jdist.wire.transport.keys import Connection

ANSWER_TIMEOUT = 3.0  # Seconds for a controller to answer.
RETRY_AFTER = 2.0  # Seconds until a controller that did not answer is asked again.
_log = logging.getLogger("jdist.client")

_END = 5.0  # Seconds for a follower to end.
_OBSERVE_TIMEOUT = 2.0  # Seconds for ranks to report what they do.
_SHORTEST_PAUSE = 0.5  # Seconds from one poll to the next at least, although the cluster changes.
_WATCHED_PAUSE = 1.0  # Seconds from one poll to the next at most, while cells run and a user watches.
_RANKS_A_SECOND = 256  # Ranks that are observed in a second; a larger world is polled less often.

Observations = Mapping[int, Observation]


class ClusterFollower(ABC):
    """Polls a cluster whenever it reports a change, and after :meth:`pause`. Lives on the client's loop."""

    def __init__(self) -> None:
        self.observer: AsyncCluster | None = None  # The attached client; None while the cluster cannot be reached.
        self.has_changed = False  # The cluster reported a change before the present poll.
        self.was_attached = False  # The last attempt to attach succeeded.
        self._changed = asyncio.Event()
        self._following = asyncio.ensure_future(self._follow())

    @property
    @abstractmethod
    def connection(self) -> Connection:
        """Where the cluster is now."""

    @abstractmethod
    def wants_observations(self, report: StatusReport) -> bool:
        """Whether the ranks are to be asked what they do."""

    @abstractmethod
    def handle_report(self, report: StatusReport, observations: Observations) -> None:
        """Take the result of a poll."""

    @abstractmethod
    def handle_silence(self, error: Exception) -> None:
        """The controller cannot be reached, or did not answer a poll."""

    @abstractmethod
    async def attaches_again(self) -> bool:
        """Whether to attach once more, after the connection was lost or could not be made."""

    @abstractmethod
    def pause(self) -> float | None:
        """Seconds until the next poll if nothing changes; None: no poll until then."""

    @abstractmethod
    def handle_notice(self, notice: Notice) -> None:
        """Take a notice of the cluster."""

    def add_done_callback(self, callback: Callable[[asyncio.Task[None]], None]) -> None:
        """Call ``callback`` when following has ended, also by a fault."""
        self._following.add_done_callback(callback)

    def poll_now(self) -> None:
        """Poll again soon."""
        self._changed.set()

    async def poll(
        self, observer: AsyncCluster, wants_observations: Callable[[StatusReport], bool]
    ) -> tuple[StatusReport, Observations]:
        """The cluster now. Raises TimeoutError, ConnectionLost if it does not answer."""
        async with asyncio.timeout(ANSWER_TIMEOUT):
            report = await observer.status()
        alive = [row.rank for row in report.ranks if row.pid and row.state != "unreachable"]
        if not wants_observations(report) or not alive or report.facts.phase != "ready":
            return report, {}
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return report, await observer.look(alive, timeout=_OBSERVE_TIMEOUT)
        except (TimeoutError, ConnectionLost, UsageError):  # the last: ranks that have been removed in the meantime
            return report, {}

    async def close(self) -> None:
        """Stop following, and detach."""
        self._following.cancel()
        _, late = await asyncio.wait([self._following], timeout=_END)
        if late:  # a fault of ours, which must not keep its caller from other clusters
            _log.error("following cluster %s does not end: %s", self.connection.name, self._following)

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    self.observer = await AsyncCluster.observe(self.connection)
            except (JdistError, TimeoutError, OSError) as e:
                self.handle_silence(e)
            self.was_attached = self.observer is not None
            if self.observer is not None:
                await self._poll_until_lost(self.observer)
            if not await self.attaches_again():
                return
            if not self.was_attached:
                await asyncio.sleep(RETRY_AFTER)

    async def _poll_until_lost(self, observer: AsyncCluster) -> None:
        observer.watch(self._handle_message)
        try:
            while not observer.link.lost:
                await self._poll_once(observer)
        finally:
            self.observer = None
            await observer.detach()

    async def _poll_once(self, observer: AsyncCluster) -> None:
        self.has_changed = self._changed.is_set()
        self._changed.clear()
        try:
            self.handle_report(*await self.poll(observer, self.wants_observations))
        except (TimeoutError, ConnectionLost) as e:
            if observer.link.lost:
                return
            self.handle_silence(e)
        except Exception as e:  # a fault of ours: the next report may be handled
            _log.exception("could not follow cluster %s", observer.link.connection.name)
            self.handle_silence(e)
        await asyncio.sleep(_SHORTEST_PAUSE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.pause()):
                await self._changed.wait()

    def _handle_message(self, message: Message) -> None:
        if isinstance(message, Notice):
            self.handle_notice(message)
        if isinstance(message, Notice | ClusterFacts | RunsChanged | Stopped):
            self._changed.set()


def watched_pause(world_size: int) -> float:
    """The pause while cells run and a user watches."""
    return max(_WATCHED_PAUSE, world_size / _RANKS_A_SECOND) - _SHORTEST_PAUSE
