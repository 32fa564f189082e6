"""Session: what a notebook (or a terminal) has in hand: its cluster, its screen, its names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jdist.client.blocking import Cluster
from jdist.client.run import CellRun
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.status import Notice
from jdist.core.remedy import Remedy
from jdist.notebook.output.screen import Screen, plain
from jdist.notebook.text import remedy_text


class Session:
    """One user's session. ``namespace`` is where pulled values are bound and pushed ones are found."""

    def __init__(self, screen: Screen, namespace: dict[str, Any], kind: str):
        self.screen = screen
        self.namespace = namespace
        self.kind = kind
        self.current: Cluster | None = None
        self.exportable: Cluster | None = None
        """The cluster in use, or after its end the last one: what ran on it can still be exported."""
        self.last_run: CellRun | None = None
        self.is_auto = False
        self._missed: list[str] = []
        self._unwatch: Callable[[], None] = lambda: None
        self._followers: list[Callable[[Cluster | None], None]] = []

    @property
    def cluster(self) -> Cluster:
        """The cluster in use. Raises UsageError when there is none, or it is gone."""
        if self.current is None:
            remedies = (Remedy("start", "make one"), Remedy("attach", "use a running one"))
            raise UsageError("no cluster is in use", remedies=remedies)
        self.current.revived()
        link = self.current.asynchronous.link
        if link.lost:
            self.current = None
            raise UsageError(link.loss().message, remedies=link.remedies)
        return self.current

    def use(self, cluster: Cluster | None) -> None:
        """Take this cluster for the verbs to come; also bound as ``cluster`` in a notebook that has no such name."""
        if self.current is not None and self.namespace.get("cluster") is self.current:
            del self.namespace["cluster"]
        self.current = cluster
        self.exportable = cluster or self.exportable
        self._unwatch()
        self._unwatch = lambda: None
        self._missed = []
        if cluster is not None:
            self.namespace.setdefault("cluster", cluster)
            self._unwatch = cluster.asynchronous.watch(self._note)
        for follower in list(self._followers):
            follower(cluster)

    def follow(self, follower: Callable[[Cluster | None], None]) -> Callable[[], None]:
        """``follower`` gets each cluster that is taken from now on, or None; returns the way to end that."""
        self._followers.append(follower)
        return lambda: self._followers.remove(follower)

    def _note(self, message: Message) -> None:
        if isinstance(message, Notice):
            self._missed.append(remedy_text.worded(message))

    def take_missed(self) -> list[str]:
        """What the user should have been told since this was last asked, such as a rank that died while idle."""
        missed, self._missed = self._missed, []
        return missed

    def say(self, text: str) -> None:
        """Show a line."""
        self.screen.show(plain(text))
