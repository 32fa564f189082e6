"""News: what a browser is told of a cluster that has changed: only what is new, and at most twice a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jdist.server.snapshots import Picture, changed_ranks, safe, timeless

INTERVAL = 0.5
"""Seconds between two events about one cluster, at the least."""


class News:
    """Tells of clusters by name; ``picture`` says how one is now, None if there is none. Lives on the client's loop."""

    def __init__(self, picture: Callable[[str], Picture | None], emit: Callable[[Picture], None]):
        self._picture = picture
        self._emit = emit
        self._told: dict[str, Picture] = {}
        self._told_at: dict[str, float] = {}
        self._notices: dict[str, list[str]] = {}
        self._forced: set[str] = set()
        self._due: dict[str, asyncio.TimerHandle] = {}

    @property
    def names(self) -> set[str]:
        """Clusters that have been told of and not yet as gone."""
        return set(self._told)

    def tell(self, name: str, is_forced: bool = False, notice: str = "") -> None:
        """Something may have changed; if ``is_forced``, it is told in any case."""
        if notice:
            self._notices.setdefault(name, []).append(safe(notice))
        if is_forced:
            self._forced.add(name)
        if name in self._due:
            return
        loop = asyncio.get_running_loop()
        wait = self._told_at.get(name, -INTERVAL) + INTERVAL - loop.time()
        self._due[name] = loop.call_later(max(0.0, wait), self._say, name)

    def close(self) -> None:
        """Nothing more is told."""
        for due in self._due.values():
            due.cancel()

    def _say(self, name: str) -> None:
        del self._due[name]
        before, now = self._told.get(name), self._picture(name)
        notices, is_forced = self._notices.pop(name, []), name in self._forced
        self._forced.discard(name)
        if now is None:
            self._told.pop(name, None)
            if before is None and not notices:
                return
        else:
            self._told[name] = now
            if before is not None and not notices and not is_forced and timeless(now) == timeless(before):
                return
        self._told_at[name] = asyncio.get_running_loop().time()
        shown = now or before or {}
        self._emit(
            {
                "action": "gone" if now is None else "changed",
                "name": name,
                "cluster": {key: value for key, value in shown.items() if key != "ranks"},
                "ranks": [] if now is None else changed_ranks(before or {}, now),
                "notices": notices,
            }
        )
