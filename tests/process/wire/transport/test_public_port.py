"""The door: one port for data and control; every byte arrives, and each end sees the other's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jdist.wire.bulk.server import DataServer
from jdist.wire.transport.dialing import ping
from jdist.wire.transport.keys import KeyPair
from jdist.wire.transport.public_port import MOST_PENDING, ZMTP, PendingConnections, open_public_port
from jdist.wire.transport.sockets import DialledPort, Frames, KeyGate, bind_tcp, new_context

DEADLINE = 60.0
SERVER, FRIEND = KeyPair.make(), KeyPair.make()


@asynccontextmanager
async def house(control_port: int, most_pending: int = MOST_PENDING) -> AsyncIterator[int]:
    """A data port with a door for that control port; the door's port."""
    server = DataServer("c0ffee", lambda _name, _is_dead: None)
    server._pending = PendingConnections(most_pending)
    door = open_public_port("127.0.0.1")
    try:
        server.listen_publicly(door, control_port)
        yield int(door.getsockname()[1])
    finally:
        server.close()


def run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE))  # type: ignore[arg-type]


def test_every_byte_passes_in_both_directions() -> None:
    payload = bytes(range(256)) * 40_000

    async def work() -> None:
        ended = asyncio.Event()

        async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.close()
            ended.set()

        echo = await asyncio.start_server(repeat, "127.0.0.1", 0)
        async with house(echo.sockets[0].getsockname()[1]) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ZMTP + payload)
            assert await reader.readexactly(len(payload) + 1) == ZMTP + payload
            writer.close()
            await ended.wait()
        echo.close()

    run(work())


def test_what_the_control_port_says_at_once_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even before the peer's connection is joined, which the asyncio of Python 3.11.2 does not pause until then."""
    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "pause_reading", lambda _: None)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        connect = loop.connect_accepted_socket

        async def connect_late(*arguments: Any) -> Any:
            await said.wait()
            await asyncio.sleep(0.05)
            return await connect(*arguments)

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"greeting")
            await writer.drain()
            said.set()
            writer.write(await reader.readexactly(2))
            writer.close()

        said = asyncio.Event()
        monkeypatch.setattr(loop, "connect_accepted_socket", connect_late)
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with house(server.sockets[0].getsockname()[1]) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ZMTP + b"x")
            assert await reader.readexactly(10) == b"greeting" + ZMTP + b"x"
            writer.close()
        server.close()

    run(work())


def test_an_end_is_passed_on_either_way() -> None:
    async def work() -> None:
        ended = asyncio.Event()

        async def inner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first = await reader.readexactly(2)
            if first == ZMTP + b"x":
                writer.close()  # the control port closes
            else:
                assert await reader.read() == b""  # the peer closes
                ended.set()
                writer.close()

        server = await asyncio.start_server(inner, "127.0.0.1", 0)
        async with house(server.sockets[0].getsockname()[1]) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ZMTP + b"x")
            assert await reader.read() == b""
            writer.close()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ZMTP + b"y")
            await writer.drain()
            writer.close()
            await ended.wait()
        server.close()

    run(work())


def test_a_control_port_that_is_gone_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def work() -> None:
        async with house(port) as door:
            reader, writer = await asyncio.open_connection("127.0.0.1", door)
            writer.write(ZMTP)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    run(work())


def test_messages_reach_the_control_port_through_the_door() -> None:
    async def work() -> None:
        context = new_context()
        gate = KeyGate(context)
        gate.allow([FRIEND.public], called="a-")
        heard: asyncio.Queue[Frames] = asyncio.Queue()
        control = bind_tcp(context, "127.0.0.1", SERVER, gate, heard.put_nowait)
        async with house(control.tcp_port) as port:
            back: asyncio.Queue[Frames] = asyncio.Queue()
            near = DialledPort(context, ("127.0.0.1", port), SERVER.public, FRIEND, "a-1", back.put_nowait)
            near.send([b"x" * 3_000_000])
            assert (await heard.get()) == [b"a-1", b"x" * 3_000_000]
            control.send([b"a-1", b"y" * 3_000_000])
            assert (await back.get()) == [b"y" * 3_000_000]
            near.close()
        control.close()
        gate.close()
        await asyncio.to_thread(context.term)

    run(work())


def test_a_peer_without_a_key_makes_room_and_one_that_has_authenticated_stays() -> None:
    async def work() -> None:
        context = new_context()
        gate = KeyGate(context)
        gate.allow([FRIEND.public], called="a-")
        heard: asyncio.Queue[Frames] = asyncio.Queue()
        control = bind_tcp(context, "127.0.0.1", SERVER, gate, heard.put_nowait)
        async with house(control.tcp_port, most_pending=2) as port:
            near = DialledPort(context, ("127.0.0.1", port), SERVER.public, FRIEND, "a-1", lambda _: None)
            near.send([b"first"])
            assert await heard.get() == [b"a-1", b"first"]
            others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for _, writer in others:
                writer.write(ZMTP)
            oldest = others[0][0]
            with contextlib.suppress(ConnectionResetError):  # as it is where its byte has not been read
                assert await oldest.read() == b""
            near.send([b"second"])
            assert await heard.get() == [b"a-1", b"second"]
            for _, writer in others:
                writer.close()
            near.close()
        control.close()
        gate.close()
        await asyncio.to_thread(context.term)

    run(work())


def test_only_this_cluster_answers_a_ping() -> None:
    async def work() -> None:
        async with house(1) as port:
            assert await ping(("127.0.0.1", port), "c0ffee")
            assert not await ping(("127.0.0.1", port), "beef")
        assert not await ping(("127.0.0.1", port), "c0ffee", timeout=1.0)

    run(work())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_any_address_is_of_both_families() -> None:
    with open_public_port("*") as door:
        port = door.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=DEADLINE).close()
