"""Panel follower: what a panel knows of its cluster, and when the cluster is polled for it."""

import asyncio
from collections.abc import Callable

from jdist.client.cluster import AsyncCluster
from jdist.client.follow import ANSWER_TIMEOUT, RETRY_AFTER, ClusterFollower, Observations, watched_pause
from jdist.core.messages.status import Notice, StatusReport
from jdist.notebook.panel.html import Sight
from jdist.notebook.panel.part import Visibility
from jdist.notebook.text.remedy_text import typed, worded
from jdist.wire.transport.keys import Connection

_UNSEEN_PAUSE = 10.0  # Seconds until it is asked again whether a browser shows the panel, while cells run.
_UNSEEN = "no browser has shown this for a while; it goes on when one does"


class PanelFollower(ClusterFollower):
    """Calls ``show(sight)`` on the client's loop, at most twice a second and only with something new.

    It pauses while cells run and no browser shows the panel; :meth:`poll_now` ends a pause.
    """

    def __init__(self, cluster: AsyncCluster, show: Callable[[Sight], None], visibility: Visibility):
        self._cluster = cluster
        self._show = show
        self._visibility = visibility
        self._sight = Sight("connecting", f"connecting to cluster {cluster.name}")
        self._state = "watching"
        super().__init__()
        self.add_done_callback(self._handle_end)

    @property
    def connection(self) -> Connection:
        return self._cluster.link.connection

    def wants_observations(self, report: StatusReport) -> bool:
        if not report.runs:
            self._visibility.end()
            self._state = "watching"
            return True
        if self._state == "watching":
            self._visibility.begin()
        self._state = "live" if self._visibility.is_visible() else "paused"
        return self._state == "live"

    def handle_report(self, report: StatusReport, observations: Observations) -> None:
        self._set(Sight(self._state, _UNSEEN if self._state == "paused" else "", report, observations))

    def handle_silence(self, error: Exception) -> None:
        is_late = isinstance(error, TimeoutError) and self.observer is not None
        late = f"its controller has not answered for {ANSWER_TIMEOUT:.0f} s"
        self._keep("silent", late if is_late else str(error) or "its controller does not answer")

    def handle_notice(self, notice: Notice) -> None:
        """The session shows notices."""

    async def attaches_again(self) -> bool:
        await self._cluster.revived()
        link = self._cluster.link
        if link.lost:
            self._keep("gone", worded(link.loss()))
        return not link.lost

    def pause(self) -> float | None:
        if self._sight.state == "silent":
            return RETRY_AFTER
        if self._state == "paused":
            self._visibility.probe()
            return _UNSEEN_PAUSE
        if self._state == "live" and self._sight.found is not None:
            return watched_pause(len(self._sight.found.ranks))
        return None

    def _handle_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._keep("gone", f"the panel failed ({type(error).__name__}: {error}); {typed('panel')} opens another")

    def _keep(self, state: str, note: str) -> None:
        """Show a state in which nothing new is known, with what was known last."""
        self._set(Sight(state, note, self._sight.found, self._sight.looked))

    def _set(self, sight: Sight) -> None:
        if sight != self._sight:
            self._sight = sight
            self._show(sight)
