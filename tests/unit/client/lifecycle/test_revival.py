"""Revival: a controller that has died is started again, once for all who need it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jdist.client import find
from jdist.client.attachment import Attachment
from jdist.client.lifecycle import lifecycle as lifecycle_module
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
from jdist.client.link import Link
from jdist.core.errors import ConnectionLost, JdistError, LaunchError
from jdist.core.messages.base import Message
from jdist.core.messages.status import Stopped
from jdist.wire.transport.keys import Connection, KeyPair

KEYS = KeyPair.make()
CONNECTION = Connection("c", "0" * 12, "127.0.0.1", 1, 1, KEYS.public, KEYS, 1, "1")


class Unconnected(Link):
    """A link without a connection."""

    def __init__(self) -> None:
        self.connection = CONNECTION
        self.facts = None
        self.lost = ""
        self.is_orphaned = self.is_dropped = False
        self.successor = None
        self._is_ending = False
        self._local_pid = 0
        self._changed = asyncio.Event()

    def close(self) -> None:
        self.lost = self.lost or "closed"


class Revived(ClusterLifecycle):
    """An attached client; each attempt to start the controller again ends as ``outcomes`` say, the last also later."""

    def __init__(self, outcomes: list[JdistError | None]) -> None:
        attachment = Attachment()
        super().__init__(attachment)
        self.attachment = attachment
        self.outcomes = outcomes
        self.attempts = 0
        self.heard: list[Message] = []
        attachment.watch(self.heard.append)
        self._adopt(Unconnected())
        self._may_revive = True

    async def _open_link(self, connection: Connection, *, is_dead: bool = False) -> Link:
        self.attempts += 1
        await asyncio.sleep(0)
        if (error := self.outcomes.pop(0)) is not None:
            raise error
        return Unconnected()

    @property
    def link(self) -> Link:
        return self.attachment.link

    def die(self) -> Link:
        """The controller dies, and the client notices it."""
        link = self.link
        link.lost, link.is_orphaned = "its controller is gone", True
        self.attachment.receive(Stopped(link.lost, link.remedies))
        return link


def play(
    outcomes: list[JdistError | None],
    scene: Callable[[Revived], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    restart_time: float = 30.0,
) -> None:
    monkeypatch.setattr(find, "restart_time", lambda _: restart_time)
    monkeypatch.setattr(lifecycle_module, "sweep_handed_over", lambda _: [])

    async def main() -> None:
        await asyncio.wait_for(scene(Revived(outcomes)), 10.0)

    asyncio.run(main())


def test_all_who_need_the_cluster_share_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(revived: Revived) -> None:
        lost = revived.die()
        links = await asyncio.gather(*(lost.current() for _ in range(5)), revived.link.current())
        assert set(links) == {revived.link}
        assert revived.link is not lost
        assert revived.attempts == 1

    play([None], scene, monkeypatch)


def test_the_next_use_tries_again_what_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(revived: Revived) -> None:
        lost = revived.die()
        with pytest.raises(ConnectionLost, match="could not be started again: no room") as failed:
            await lost.current()
        assert [r.action for r in failed.value.remedies] == ["attach"]
        assert await lost.current() is revived.link
        assert revived.attempts == 2

    play([LaunchError("no room"), None], scene, monkeypatch)


def test_where_it_is_too_late_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(revived: Revived) -> None:
        revived.die()
        await revived.revived()
        with pytest.raises(ConnectionLost, match="could not be started again") as failed:
            await revived.link.current()
        assert [r.action for r in failed.value.remedies] == ["start"]
        assert revived.attempts == 1
        assert isinstance(revived.heard[-1], Stopped)

    play([ConnectionLost("no agent waits for it any more")], scene, monkeypatch, restart_time=0.0)


def test_a_client_that_detaches_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(revived: Revived) -> None:
        lost = revived.die()
        waiting: Any = asyncio.ensure_future(lost.current())
        await asyncio.sleep(0)
        await revived.detach()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ConnectionLost):
            await lost.current()
        assert revived.link is lost
        assert revived.attempts == 1

    play([], scene, monkeypatch)
