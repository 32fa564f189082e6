"""Dialing: what a peer of the data port hears when bytes do not come or are not taken."""

from __future__ import annotations

import asyncio
import socket

import pytest

from jdist.core.errors import ConnectionLost
from jdist.wire.transport.dialing import Receiver, get_segment, put_segment, receive_into
from jdist.wire.values.segments import new_memory
from support.port import filled, in_thread, run, serving, until


@pytest.mark.parametrize("near", [False, True], ids=["far", "near"])
@pytest.mark.parametrize("when", ["before", "waiting"])
def test_a_receiver_that_is_cut_raises_at_once(cluster: str, when: str, near: bool) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.pass_on("t1", 10, "c-1")
            receiver = Receiver(port.address, "t1", new_memory(10), port.server.near if near else "")
            if when == "before":
                receiver.cut()
            getting = asyncio.create_task(in_thread(receiver.run))
            if when == "waiting":
                await until(lambda: port.server._transfers["t1"][0]._ends)
                receiver.cut()
            with pytest.raises(ConnectionLost):
                await getting

    run(scenario)


def test_a_receiver_to_which_nothing_comes_gives_up() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(0.2)
        other.sendall(b"abc")
        with pytest.raises(TimeoutError):
            receive_into(one, new_memory(10))


def test_a_get_that_ends_early_is_an_error_and_leaves_nothing(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            with pytest.raises(ConnectionLost, match="after 0 of 100 bytes"):
                await asyncio.to_thread(get_segment, port.address, "unknown", cluster, 100, print)

    run(scenario)


def test_a_put_that_is_not_confirmed_is_an_error(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            with filled(cluster, b"x" * 100) as segment:
                with pytest.raises(ConnectionLost):
                    await asyncio.to_thread(put_segment, port.address, "unknown", segment)
                segment.unlink()

    run(scenario)


def test_a_port_where_nobody_listens_is_an_error(cluster: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with pytest.raises(ConnectionLost, match="data port"):
        get_segment(address, "n", cluster, 10, print)
