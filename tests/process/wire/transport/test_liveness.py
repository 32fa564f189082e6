"""Lifelines: both ends notice the other's end at once, and tell it from a connection that broke."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from jdist.wire.transport.dialing import dial_data
from jdist.wire.transport.sockets import dial_liveness
from support.port import closed_without_a_word, run, serving, until


def ignore(_is_dead: bool) -> None:
    """For liveness connections that end with the test."""


def abort(sock: socket.socket) -> None:
    """End a connection as a firewall may: with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_a_lifeline_that_is_reset_tells_nothing_of_the_process(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.allow_liveness("one")
            port.server.allow_liveness("two")
            abort(dial_data(port.address, "LIFE", "one"))
            await port.noticed.wait()
            assert port.ended == ["one broke"]
            over: asyncio.Queue[bool] = asyncio.Queue()
            line = await dial_liveness(port.address, "two", over.put_nowait)
            await until(lambda: port.server._liveness)
            (other,) = port.server._liveness.values()
            sock = other._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            other.close()
            assert await over.get() is False
            line.close()

    run(scenario)


def test_a_data_port_that_nobody_serves_has_no_lifelines() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
        with pytest.raises(ConnectionRefusedError):
            await dial_liveness(address, "one", ignore)

    run(scenario)


def test_the_controller_notices_the_end_of_a_lifeline(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.allow_liveness("one")
            port.server.allow_liveness("two")
            one = await dial_liveness(port.address, "one", ignore)
            two = await dial_liveness(port.address, "two", ignore)
            await until(lambda: len(port.server._liveness) == 2)
            one.close()
            await port.noticed.wait()
            assert port.ended == ["one"]
            one.close()
            port.noticed.clear()
            two.close()
            await port.noticed.wait()
            assert port.ended == ["one", "two"]

    run(scenario)


def test_a_process_notices_the_controllers_end(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.allow_liveness("one")
            over: asyncio.Queue[bool] = asyncio.Queue()
            line = await dial_liveness(port.address, "one", over.put_nowait)
            await until(lambda: port.server._liveness)
            port.server.close()
            assert await over.get() is True
            assert port.ended == [], "the controller itself ended it"
            line.close()

    run(scenario)


def test_a_lifeline_serves_once(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.allow_liveness("one")
            line = await dial_liveness(port.address, "one", ignore)
            await until(lambda: port.server._liveness)
            assert await closed_without_a_word(dial_data(port.address, "LIFE", "one"))
            assert port.ended == []
            line.close()

    run(scenario)


def test_words_on_a_lifeline_are_ignored(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.allow_liveness("one")
            sock = dial_data(port.address, "LIFE", "one")
            sock.sendall(b"chatter")
            await until(lambda: port.server._liveness)
            await asyncio.sleep(0.05)
            assert port.ended == []
            sock.close()
            await port.noticed.wait()
            assert port.ended == ["one"]

    run(scenario)
