"""Event feed: what a browser is sent of a cluster that has changed: only what is new, and at most twice a second."""

import asyncio
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


class EventFeed:
    """Emits events about clusters. ``snapshot_of`` gives one by name, None if there is none. On the client's loop."""

    def __init__(self, snapshot_of: Callable[[str], ClusterSnapshot | None], emit: Callable[[ClusterEvent], None]):
        self._snapshot_of = snapshot_of
        self._emit = emit
        self._sent: dict[str, ClusterSnapshot] = {}
        self._sent_at: dict[str, float] = {}
        self._notices: dict[str, list[str]] = {}
        self._forced: set[str] = set()
        self._due: dict[str, asyncio.TimerHandle] = {}

    @property
    def names(self) -> set[str]:
        """Clusters about which a browser knows."""
        return set(self._sent)

    def update(self, name: str, is_forced: bool = False, notice: str = "") -> None:
        """The cluster may have changed. ``is_forced``: send an event even if it has not."""
        if notice:
            self._notices.setdefault(name, []).append(redacted(notice))
        if is_forced:
            self._forced.add(name)
        if name in self._due:
            return
        loop = asyncio.get_running_loop()
        wait = self._sent_at.get(name, -INTERVAL) + INTERVAL - loop.time()
        self._due[name] = loop.call_later(max(0.0, wait), self._send, name)

    def close(self) -> None:
        """Send nothing more."""
        for due in self._due.values():
            due.cancel()

    def _send(self, name: str) -> None:
        del self._due[name]
        before, now = self._sent.get(name), self._snapshot_of(name)
        notices, is_forced = self._notices.pop(name, []), name in self._forced
        self._forced.discard(name)
        if now is None:
            self._sent.pop(name, None)
            if before is None and not notices:
                return
        else:
            self._sent[name] = now
            if before is not None and not notices and not is_forced and now.timeless() == before.timeless():
                return
        self._sent_at[name] = asyncio.get_running_loop().time()
        shown = (now or before or ClusterSnapshot(name=name)).without_ranks()
        rows = () if now is None else now.changed_rows(before)
        self._emit(ClusterEvent("gone" if now is None else "changed", name, shown, rows, notices))
