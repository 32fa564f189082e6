"""The outbox: messages of one turn leave as one payload, in order, and none waits for another turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from jdist.core.messages.base import Ack
from jdist.wire.transport.streams import Outbox
from jdist.wire.values.frames import pack, split

ONE, OTHER = pack(Ack()), b"\x80"


def in_a_loop(scene: Callable[[Outbox, list[bytes]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        sent: list[bytes] = []
        await scene(Outbox(sent.append), sent)

    asyncio.run(main())


def test_messages_of_one_turn_leave_together() -> None:
    async def scene(outbox: Outbox, sent: list[bytes]) -> None:
        for data in (ONE, OTHER, ONE):
            outbox.add(data)
        assert sent == []
        await asyncio.sleep(0)
        assert [split(payload) for payload in sent] == [[ONE, OTHER, ONE]]
        outbox.add(OTHER)
        await asyncio.sleep(0)
        assert sent[1:] == [OTHER], "a message alone travels as it is"
        await asyncio.sleep(0)
        assert len(sent) == 2

    in_a_loop(scene)


def test_what_may_wait_leaves_with_what_may_not_or_when_its_time_is_over() -> None:
    async def main() -> None:
        sent: asyncio.Queue[bytes] = asyncio.Queue()
        outbox = Outbox(sent.put_nowait)
        outbox.add(ONE, within=3600.0)
        await asyncio.sleep(0)
        assert sent.empty()
        outbox.add(OTHER)
        await asyncio.sleep(0)
        assert split(sent.get_nowait()) == [ONE, OTHER]
        outbox.add(ONE, within=0.001)
        outbox.add(OTHER, within=3600.0)
        assert split(await asyncio.wait_for(sent.get(), 10)) == [ONE, OTHER]
        outbox.add(OTHER)
        outbox.add(ONE, within=3600.0)
        await asyncio.sleep(0)
        assert split(sent.get_nowait()) == [OTHER, ONE]

    asyncio.run(main())


def test_a_large_message_travels_alone_and_in_order() -> None:
    async def scene(outbox: Outbox, sent: list[bytes]) -> None:
        large = bytes(1 << 20)
        for data in (ONE, large, OTHER):
            outbox.add(data)
        await asyncio.sleep(0)
        assert sent == [ONE, large, OTHER]

    in_a_loop(scene)


def test_what_has_to_leave_now_is_not_sent_twice() -> None:
    async def scene(outbox: Outbox, sent: list[bytes]) -> None:
        outbox.add(ONE)
        outbox.flush()
        assert sent == [ONE]
        await asyncio.sleep(0)
        outbox.flush()
        assert sent == [ONE]

    in_a_loop(scene)
