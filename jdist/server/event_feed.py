"""Event feed: what a browser is sent of a cluster that has changed: only what is new, and at most twice a second."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from jdist.server.snapshots import ClusterSnapshot, RankRow, redacted

INTERVAL = 0.5  # Seconds between two events about one cluster at least.


class ClusterEvent(Struct, frozen=True):
    """An event as events.yaml describes it."""

    action: Literal["changed", "gone"]
    name: str
    cluster: ClusterSnapshot
    ranks: tuple[RankRow, ...]
    notices: list[str]


class _Cluster(Struct):
    """What is to be sent of one cluster, and what has been."""

    sent: ClusterSnapshot | None = None
    sent_at: float = -INTERVAL
    notices: list[str] = []
    is_forced: bool = False
    due: asyncio.TimerHandle | None = None


class EventFeed:
    """Emits events about clusters. ``snapshot_of`` gives one by name, None if there is none. On the client's loop."""

    def __init__(self, snapshot_of: Callable[[str], ClusterSnapshot | None], emit: Callable[[ClusterEvent], None]):
        self._snapshot_of = snapshot_of
        self._emit = emit
        self._clusters: dict[str, _Cluster] = defaultdict(_Cluster)

    @property
    def names(self) -> set[str]:
        """Clusters about which a browser knows."""
        return {name for name, cluster in self._clusters.items() if cluster.sent is not None}

    def update(self, name: str, is_forced: bool = False, notice: str = "") -> None:
        """The cluster may have changed. ``is_forced``: send an event even if it has not."""
        cluster = self._clusters[name]
        if notice:
            cluster.notices.append(redacted(notice))
        cluster.is_forced |= is_forced
        if cluster.due is None:
            loop = asyncio.get_running_loop()
            cluster.due = loop.call_later(max(0.0, cluster.sent_at + INTERVAL - loop.time()), self._send, name)

    def close(self) -> None:
        """Send nothing more."""
        for cluster in self._clusters.values():
            if cluster.due is not None:
                cluster.due.cancel()

    def _send(self, name: str) -> None:
        last, now = self._clusters[name], self._snapshot_of(name)
        before, notices = last.sent, last.notices
        cluster = self._clusters[name] = _Cluster(now, last.sent_at)
        is_new = before is not now if now is None or before is None else now.timeless() != before.timeless()
        if not (is_new or notices or (last.is_forced and now is not None)):
            return
        cluster.sent_at = asyncio.get_running_loop().time()
        shown = (now or before or ClusterSnapshot(name=name)).without_ranks()
        rows = () if now is None else now.changed_rows(before)
        self._emit(ClusterEvent("gone" if now is None else "changed", name, shown, rows, notices))
