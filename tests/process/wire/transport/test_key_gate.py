"""The gate: a key opens it for as long as it is allowed, and only under names of its kind."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Iterator

import pytest

from jdist.core.errors import ProtocolError
from jdist.wire.log import LogHandler
from jdist.wire.transport.keys import KeyPair, agent_name
from jdist.wire.transport.sockets import DialledPort, Frames, KeyGate, Port, bind_tcp, new_context

SERVER, AGENT, GUEST = KeyPair.make(), KeyPair.make(), KeyPair.make()
DEADLINE = 60.0


class Bench:
    """A gate, a guarded port, and peers that dial it."""

    def __init__(self) -> None:
        self.voids: list[float] = []
        self.context = new_context()
        self.gate = KeyGate(self.context, lambda: self.voids.append(time.time()))
        self.heard: asyncio.Queue[Frames] = asyncio.Queue()
        self.port = bind_tcp(self.context, "127.0.0.1", SERVER, self.gate, self.heard.put_nowait)
        self.refused = asyncio.Event()
        self.connected: asyncio.Queue[bool] = asyncio.Queue()
        self._closing: list[Port] = []

    def dial(self, keys: KeyPair, name: str) -> Port:
        at = ("127.0.0.1", self.port.tcp_port)
        changes = (self.connected.put_nowait, self.refused.set)
        port = DialledPort(self.context, at, SERVER.public, keys, name, lambda _: None, *changes)
        self._closing.append(port)
        return port

    async def close(self) -> None:
        for part in [*self._closing, self.port]:
            part.close()
        self.gate.close()
        await asyncio.to_thread(self.context.term)


def bench(work: object) -> None:
    async def whole() -> None:
        b = Bench()
        try:
            async with asyncio.timeout(DEADLINE):
                await work(b)  # type: ignore[operator]
        finally:
            await b.close()

    asyncio.run(whole())


def test_a_key_is_heard_under_names_of_its_kind_only() -> None:
    async def work(b: Bench) -> None:
        b.gate.allow([AGENT.public], called="a-")
        b.gate.allow([GUEST.public], called="e-")
        b.dial(GUEST, "a-1").send([b"as an agent"])
        b.dial(GUEST, "c-1").send([b"as a client"])
        b.dial(GUEST, "e-1").send([b"as a guest"])
        assert await b.heard.get() == [b"e-1", b"as a guest"]
        b.dial(AGENT, "a-2").send([b"mine"])
        assert await b.heard.get() == [b"a-2", b"mine"]
        await asyncio.sleep(0.2)
        assert b.heard.empty()

    bench(work)


def test_a_key_whose_time_is_over_is_refused_and_its_holder_told() -> None:
    async def work(b: Bench) -> None:
        b.gate.allow([GUEST.public], called="e-", until=time.time() - 1)
        b.dial(GUEST, "e-1").send([b"too late"])
        await b.refused.wait()
        assert b.voids
        assert b.heard.empty()

    bench(work)


def test_a_key_that_is_forbidden_is_not_heard_any_more_even_on_a_connection_that_stands() -> None:
    async def work(b: Bench) -> None:
        b.gate.allow([GUEST.public, AGENT.public])
        guest = b.dial(GUEST, "e-1")
        guest.send([b"before"])
        assert await b.heard.get() == [b"e-1", b"before"]
        b.gate.forbid([GUEST.public])
        guest.send([b"after"])
        b.dial(GUEST, "e-2")
        await b.refused.wait()
        b.dial(AGENT, "a-1").send([b"last"])
        assert await b.heard.get() == [b"a-1", b"last"]

    bench(work)


def test_a_stranger_is_no_void_key() -> None:
    async def work(b: Bench) -> None:
        b.dial(KeyPair.make(), "e-1").send([b"hello"])
        await b.refused.wait()
        assert not b.voids

    bench(work)


def test_an_agents_key_gives_one_name_and_no_other() -> None:
    async def work(b: Bench) -> None:
        other = KeyPair.make()
        for keys in (AGENT, other):
            b.gate.allow([keys.public], called=agent_name(keys.public))
        for stolen in (agent_name(other.public), agent_name(AGENT.public) + "x", "a-"):
            b.dial(AGENT, stolen).send([b"stolen"])
            assert await b.connected.get()  # of two peers under one name, the later connection counts
        b.dial(other, agent_name(other.public)).send([b"mine"])
        assert await b.heard.get() == [agent_name(other.public).encode(), b"mine"]
        b.dial(AGENT, agent_name(AGENT.public)).send([b"mine, too"])
        assert await b.heard.get() == [agent_name(AGENT.public).encode(), b"mine, too"]

    bench(work)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a controller's log file would hold."""
    stream, logger = io.StringIO(), logging.getLogger("jdist.wire")
    handler = LogHandler("controller", stream)
    logger.addHandler(handler)
    logger.propagate = False
    yield stream
    logger.propagate = True
    logger.removeHandler(handler)


def test_a_flood_under_a_wrong_name_lets_others_be_heard(written: io.StringIO) -> None:
    async def work(b: Bench) -> None:
        b.gate.allow([GUEST.public], called="e-")
        b.gate.allow([AGENT.public], called="a-")
        flood = b.dial(GUEST, "a-9")
        for _ in range(20_000):
            flood.send([b"rubbish"])
        b.dial(AGENT, "a-1").send([b"through"])
        assert await b.heard.get() == [b"a-1", b"through"]

    bench(work)
    said = written.getvalue().splitlines()
    assert 1 <= len(said) <= 50
    assert "dropped a message under the name b'a-9'" in said[0]


def test_what_is_no_message_is_dropped_with_a_line(written: io.StringIO) -> None:
    async def work(b: Bench) -> None:
        heard: asyncio.Queue[Frames] = asyncio.Queue()

        def hear(frames: Frames) -> None:
            if frames[-1] == b"bad":
                raise ProtocolError("it is bad")
            heard.put_nowait(frames)

        b.gate.allow([AGENT.public], called="a-")
        b.port._on_frames = hear
        peer = b.dial(AGENT, "a-1")
        for data in (b"bad", b"bad", b"good"):
            peer.send([data])
        assert await heard.get() == [b"a-1", b"good"]

    bench(work)
    lines = written.getvalue().splitlines()
    assert len(lines) == 2
    assert all("dropped a message at tcp://" in line and line.endswith(": it is bad") for line in lines)
