"""The controller's ends of its peers' streams: what a peer is sent in one turn is one message, and is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jdist.controller.peers import PeerStreams
from jdist.core.messages.base import Ack, Message
from jdist.core.messages.membership import Heartbeat, Rejected
from jdist.wire.transport.sockets import Frames
from jdist.wire.transport.streams import MESSAGE, Stream, read_head
from jdist.wire.values.frames import pack, split


def taken_by(sent: list[Frames]) -> Callable[[Frames], bool]:
    """Sends by putting frames into a list."""

    def send(frames: Frames) -> bool:
        sent.append(frames)
        return True

    return send


def after(*actions: Callable[[PeerStreams], object]) -> list[Frames]:
    """What has been sent when the actions, all of one turn, and the turn after them are over."""
    sent: list[Frames] = []

    async def main() -> None:
        streams = PeerStreams(taken_by(sent), lambda peer, why: None)
        for peer in ("a-0", "a-1"):
            streams.receive(peer, Stream(1).message(b"hello"))
        for action in actions:
            action(streams)
        await asyncio.sleep(0)

    asyncio.run(main())
    return sent


def messages(sent: list[Frames], peer: str) -> list[list[bytes]]:
    """The messages of each payload that the peer got."""
    return [split(data) for to, head, data in sent if to.decode() == peer and read_head([head, data]).kind == MESSAGE]


def test_each_peer_gets_one_payload() -> None:
    said: list[Message] = [Ack(), Heartbeat(), Ack()]
    sent = after(*(lambda s, m=m: [s.send(peer, m) for peer in ("a-0", "a-1")] for m in said))  # type: ignore[misc]
    assert messages(sent, "a-0") == messages(sent, "a-1") == [[pack(m) for m in said]]


def test_a_peer_that_is_forgotten_hears_why_and_nothing_else() -> None:
    why = Rejected("not one of ours")
    sent = after(lambda s: s.send("a-0", why), lambda s: s.forget("a-0"), lambda s: s.send("a-0", Ack()))
    assert messages(sent, "a-0") == [[pack(why)]]


def test_what_is_said_last_leaves_before_the_end() -> None:
    sent: list[Frames] = []

    async def main() -> None:
        streams = PeerStreams(taken_by(sent), lambda peer, why: None)
        streams.receive("a-0", Stream(1).message(b"hello"))
        streams.send("a-0", Ack())
        streams.flush()
        assert messages(sent, "a-0") == [[pack(Ack())]]

    asyncio.run(main())
