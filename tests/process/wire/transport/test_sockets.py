"""Sockets: who holds the keys is heard, in order and whole; who does not gets nothing through."""

from __future__ import annotations

import asyncio
import socket as plain
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from jdist.wire.transport.keys import KeyPair
from jdist.wire.transport.sockets import DialledPort, Frames, KeyGate, Port, bind_ipc, bind_tcp, dial_ipc, new_context

DEADLINE = 60.0
SERVER, FRIEND, STRANGER = KeyPair.make(), KeyPair.make(), KeyPair.make()


class Inbox:
    """Collects messages; waits for the n-th."""

    def __init__(self) -> None:
        self.messages: list[Frames] = []
        self._changed = asyncio.Event()

    def __call__(self, frames: Frames) -> None:
        self.messages.append(frames)
        self._changed.set()

    async def wait(self, count: int) -> list[Frames]:
        async with asyncio.timeout(DEADLINE):
            while len(self.messages) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.messages


class Controller:
    """A controller's gate and port, and what closes them."""

    def __init__(self) -> None:
        self.context = new_context()
        self.gate = KeyGate(self.context)
        self.gate.allow([FRIEND.public])
        self.inbox = Inbox()
        self.port = bind_tcp(self.context, "127.0.0.1", SERVER, self.gate, self.inbox)
        self.ports: list[Port] = [self.port]

    def dial(
        self, name: str, keys: KeyPair = FRIEND, server_key: str = SERVER.public, on_frames: Any = None
    ) -> tuple[Port, Inbox]:
        inbox = on_frames or Inbox()
        port = DialledPort(self.context, ("127.0.0.1", self.port.tcp_port), server_key, keys, name, inbox)
        self.ports.append(port)
        return port, inbox


@asynccontextmanager
async def controller() -> AsyncIterator[Controller]:
    c = Controller()
    try:
        yield c
    finally:
        for port in c.ports:
            port.close()
        c.gate.close()
        c.context.term()


def test_an_allowed_key_talks_both_ways() -> None:
    async def scenario() -> None:
        async with controller() as c:
            port, inbox = c.dial("c-1")
            assert port.send([b"hello", b""])
            assert await c.inbox.wait(1) == [[b"c-1", b"hello", b""]]
            assert c.port.send([b"c-1", b"welcome"])
            assert await inbox.wait(1) == [[b"welcome"]]

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", ["client key", "server key"])
def test_a_wrong_key_gets_nothing_through(wrong: str) -> None:
    async def scenario() -> None:
        async with controller() as c:
            keys = STRANGER if wrong == "client key" else FRIEND
            server_key = STRANGER.public if wrong == "server key" else SERVER.public
            stranger, heard = c.dial("c-bad", keys, server_key)
            stranger.send([b"let me in"])
            friend, _ = c.dial("c-good")
            for n in range(20):  # twenty round trips: time enough for a handshake that is allowed
                friend.send([b"ping"])
                await c.inbox.wait(n + 1)
                assert not c.port.send([b"c-bad", b"secret"])
            assert {m[0] for m in c.inbox.messages} == {b"c-good"}
            assert heard.messages == []

    asyncio.run(scenario())


def test_a_client_without_encryption_gets_nothing_through() -> None:
    async def scenario() -> None:
        async with controller() as c:
            bare = c.context.socket(zmq.DEALER)
            bare.linger = 0
            bare.routing_id = b"c-bare"
            bare.connect(f"tcp://127.0.0.1:{c.port.tcp_port}")
            bare.send(b"let me in")
            with plain.create_connection(("127.0.0.1", c.port.tcp_port)) as raw:
                raw.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(200))
                friend, _ = c.dial("c-good")
                for n in range(20):
                    friend.send([b"ping"])
                    await c.inbox.wait(n + 1)
            assert not c.port.send([b"c-bare", b"secret"])
            bare.close()
            assert {m[0] for m in c.inbox.messages} == {b"c-good"}

    asyncio.run(scenario())


def test_ten_thousand_messages_each_way_arrive_in_order() -> None:
    count = 10_000

    async def scenario() -> None:
        async with controller() as c:
            port, inbox = c.dial("c-1")
            port.send([b"hello"])
            await c.inbox.wait(1)
            for n in range(count):
                port.send([b"%d" % n])
                c.port.send([b"c-1", b"%d" % n])
                if n % 1000 == 0:
                    await asyncio.sleep(0)
            await asyncio.gather(c.inbox.wait(count + 1), inbox.wait(count))
            assert [int(m[1]) for m in c.inbox.messages[1:]] == list(range(count))
            assert [int(m[0]) for m in inbox.messages] == list(range(count))

    asyncio.run(scenario())


def test_a_peer_that_is_gone_is_told_by_the_send() -> None:
    async def scenario() -> None:
        async with controller() as c:
            assert not c.port.send([b"c-1", b"x"]), "never seen"
            port, _ = c.dial("c-1")
            port.send([b"hello"])
            await c.inbox.wait(1)
            assert c.port.send([b"c-1", b"x"])
            port.close()
            assert not port.send([b"too late"])
            async with asyncio.timeout(DEADLINE):
                while c.port.send([b"c-1", b"x"]):  # noqa: ASYNC110 — nothing wakes who waits for an end of TCP
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_a_peer_that_comes_again_under_its_name_takes_over() -> None:
    async def scenario() -> None:
        async with controller() as c:
            _, first = c.dial("c-1")
            c.ports[-1].send([b"one"])
            await c.inbox.wait(1)
            again, second = c.dial("c-1")
            again.send([b"two"])
            await c.inbox.wait(2)
            c.port.send([b"c-1", b"to the newer"])
            assert await second.wait(1) == [[b"to the newer"]]
            assert first.messages == []

    asyncio.run(scenario())


def test_what_comes_behind_a_message_that_its_reader_chokes_on_is_still_read() -> None:
    async def scenario() -> None:
        async with controller() as c:
            complaints: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            inbox = Inbox()
            c.port._on_frames = choking(inbox)
            port, _ = c.dial("c-1")
            for n in range(200):
                port.send([b"%d" % n])
            await inbox.wait(199)
            assert [int(m[1]) for m in inbox.messages] == [n for n in range(200) if n != 5]
            assert len(complaints) == 1

    def choking(inbox: Inbox) -> Callable[[Frames], None]:
        def read(frames: Frames) -> None:
            if frames[1] == b"5":
                raise ValueError("cannot be read")
            inbox(frames)

        return read

    asyncio.run(scenario())


def test_a_closed_port_hears_nothing_more_and_closes_twice() -> None:
    async def scenario() -> None:
        async with controller() as c:
            port, inbox = c.dial("c-1")
            port.send([b"hello"])
            await c.inbox.wait(1)
            port.close()
            port.close()
            c.port.send([b"c-1", b"x"])
            await asyncio.sleep(0.05)
            assert inbox.messages == []

    asyncio.run(scenario())


def test_messages_that_are_queued_leave_before_a_port_that_lingers_is_gone() -> None:
    async def scenario() -> None:
        async with controller() as c:
            port, _ = c.dial("c-1")
            for n in range(500):
                port.send([b"%d" % n])
            port.close(linger=5.0)
            assert len(await c.inbox.wait(500)) == 500

    asyncio.run(scenario())


def test_ipv6() -> None:
    if not plain.has_ipv6:
        pytest.skip("this Python has no IPv6")
    with plain.socket(plain.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as e:
            pytest.skip(f"this host has no ::1 ({e})")

    async def scenario() -> None:
        context, inbox = new_context(), Inbox()
        gate = KeyGate(context)
        gate.allow([FRIEND.public])
        port = bind_tcp(context, "::1", SERVER, gate, inbox)
        peer = DialledPort(context, ("::1", port.tcp_port), SERVER.public, FRIEND, "c-6", Inbox())
        peer.send([b"six"])
        assert await inbox.wait(1) == [[b"c-6", b"six"]]
        peer.close()
        port.close()
        gate.close()
        context.term()

    asyncio.run(scenario())


def test_inside_a_node_messages_go_both_ways(tmp_path: Path) -> None:
    async def scenario() -> None:
        context, up, down = new_context(), Inbox(), Inbox()
        agent = bind_ipc(context, str(tmp_path / "agent"), up)
        assert not agent.send([b"3", b"early"])
        worker = dial_ipc(context, str(tmp_path / "agent"), down, identity="3")
        worker.send([b"hello"])
        assert await up.wait(1) == [[b"3", b"hello"]]
        assert agent.send([b"3", b"form"])
        assert await down.wait(1) == [[b"form"]]
        worker.close()
        agent.close()
        context.term()

    asyncio.run(scenario())


def test_a_dialled_port_reports_the_handshake_and_the_end() -> None:
    async def scenario() -> list[bool]:
        context = new_context()
        server, client = KeyPair.make(), KeyPair.make()
        gate = KeyGate(context)
        gate.allow([client.public])
        heard: asyncio.Queue[bool] = asyncio.Queue()
        port = bind_tcp(context, "127.0.0.1", server, gate, lambda _: None)
        address = ("127.0.0.1", port.tcp_port)
        near = DialledPort(context, address, server.public, client, "a-1", lambda _: None, heard.put_nowait)
        changes = [await asyncio.wait_for(heard.get(), DEADLINE)]
        port.close()
        changes.append(await asyncio.wait_for(heard.get(), DEADLINE))
        near.close()
        gate.close()
        await asyncio.to_thread(context.destroy, 0)
        return changes

    assert asyncio.run(scenario()) == [True, False]


AHEAD_AND_AWAY = """
import asyncio, sys, time
from jdist.wire.transport.keys import KeyPair
from jdist.wire.transport.sockets import DialledPort, KeyGate, bind_tcp, new_context

SERVER, FRIEND = KeyPair.make(), KeyPair.make()

async def main():
    heard, greeted = [], asyncio.Event()
    gate = KeyGate(context := new_context())
    gate.allow([FRIEND.public])
    port = bind_tcp(context, "127.0.0.1", SERVER, gate, lambda frames: (heard.append(frames), port.send(frames)))
    address = ("127.0.0.1", port.tcp_port)
    peer = DialledPort(new_context(), address, SERVER.public, FRIEND, "c-1", lambda _: greeted.set())
    peer.send([b"hello"])
    await asyncio.wait_for(greeted.wait(), 20)
    for _ in range(5000):
        peer.send([bytes(100)])
    time.sleep(0.5)  # nobody reads
    peer.close()
    time.sleep(2.5)
    for _ in range(100):
        await asyncio.sleep(0)
    other = DialledPort(new_context(), address, SERVER.public, FRIEND, "c-2", lambda _: greeted.set())
    greeted.clear()
    other.send([b"hello"])
    await asyncio.wait_for(greeted.wait(), 20)
    print("there is", len(heard) > 16)

asyncio.run(main())
"""


def test_a_peer_that_is_ahead_and_goes_away_does_not_end_the_controller() -> None:
    """As zmq's own heartbeats do, when one is due on such a connection while the process is stopped or starved."""
    command = [sys.executable, "-c", AHEAD_AND_AWAY]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "there is True\n"), done.stderr
