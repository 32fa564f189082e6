"""StoredTransfer: bytes that are kept reach every GET, and go with their PUT's failure or their client."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from jdist.core.errors import ConnectionLost
from jdist.core.messages.base import ProbeWire
from jdist.wire.transport.dialing import dial_data, get_segment, put_segment, receive_into
from jdist.wire.values.segments import Segment, create_probe
from support.port import closed_without_a_word, filled, in_thread, present, pull, run, serving, until


@pytest.mark.parametrize("size", [1, 4096, 3_000_001])
def test_several_nodes_get_what_was_put(cluster: str, size: int) -> None:
    """Those that come before the PUT, too."""
    data = os.urandom(size)

    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.expect("t1", size, "c-1")
            gets = [asyncio.create_task(pull(port, "t1", size)) for _ in range(2)]
            with filled(cluster, data) as segment:
                await in_thread(put_segment, port.address, "t1", segment)
                segment.unlink()
            third = await in_thread(get_segment, port.address, "t1", cluster, size, print)
            assert [*await asyncio.gather(*gets), bytes(third.view)] == [data] * 3
            third.close()
            third.unlink()
            port.server.forget("t1")

    run(scenario)


def test_a_get_follows_the_put(cluster: str) -> None:
    """What has come is handed out while the rest is still awaited."""

    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.expect("t1", 6, "c-1")
            put, get = dial_data(port.address, "PUT", "t1"), dial_data(port.address, "GET", "t1")
            for part in (b"ab", b"cd", b"ef"):
                put.sendall(part)
                assert await in_thread(get.recv, 2, socket.MSG_WAITALL) == part
            assert await in_thread(put.recv, 1) == b"k"
            put.close()
            get.close()
            port.server.forget("t1")

    run(scenario)


def test_a_put_that_ends_early_ends_the_gets(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.expect("t1", 10, "c-1")
            put = dial_data(port.address, "PUT", "t1")
            get = asyncio.create_task(pull(port, "t1", 10))
            put.sendall(b"abc")
            put.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionLost):
                await get
            assert await closed_without_a_word(put)

    run(scenario)


def test_a_client_that_is_gone_leaves_nothing_that_it_put(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            for name, owner in (("t1", "c-1"), ("t2", "c-2")):
                port.server.expect(name, 3, owner)
                with filled(cluster, b"abc") as segment:
                    await in_thread(put_segment, port.address, name, segment)
                    segment.unlink()
            assert len(present(cluster)) == 2
            port.server.forget_all("c-1")
            assert len(present(cluster)) == 1
            assert await pull(port, "t2", 3) == b"abc"

    run(scenario)


def test_a_segment_of_this_host_is_offered_and_stays_its_owners(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            probe = create_probe(cluster)
            segment = filled(cluster, b"abc")
            assert not port.server.offer("t1", 3, None, segment.path, "c-1")
            assert not port.server.offer("t1", 3, ProbeWire(probe.path, "another"), segment.path, "c-1")
            assert port.server.offer("t1", 3, probe, segment.path, "c-1")
            assert await pull(port, "t1", 3) == b"abc"
            assert await closed_without_a_word(dial_data(port.address, "PUT", "t1"))
            port.server.forget("t1")
            with Segment.open(segment.path, 3):
                pass
            segment.close()
            segment.unlink()
            os.unlink(probe.path)

    run(scenario)


def test_a_put_that_ends_early_leaves_nothing(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.expect("t1", 10, "c-1")
            sock = dial_data(port.address, "PUT", "t1")
            sock.sendall(b"abc")
            sock.shutdown(socket.SHUT_WR)
            assert await closed_without_a_word(sock)
            await until(lambda: not present(cluster))

    run(scenario)


def test_a_put_that_stalls_is_given_up(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster, stall=0.2) as port:
            port.server.expect("t1", 10, "c-1")
            sock = dial_data(port.address, "PUT", "t1")
            sock.sendall(b"abc")
            assert await closed_without_a_word(sock)

    run(scenario)


def test_a_get_that_nobody_reads_is_given_up(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster, stall=1.0) as port:  # long enough for it to be seen while it stands
            probe = create_probe(cluster)
            segment = Segment.create(cluster, 64 << 20)
            assert port.server.offer("t1", segment.nbytes, probe, segment.path, "c-1")
            sock = dial_data(port.address, "GET", "t1")
            ends = port.server._transfers["t1"][0]._ends
            await until(lambda: ends)
            await until(lambda: not ends)
            with pytest.raises((ConnectionLost, OSError)):
                await in_thread(receive_into, sock, memoryview(bytearray(segment.nbytes)))
            sock.close()
            segment.close()
            segment.unlink()
            os.unlink(probe.path)

    run(scenario)


@pytest.mark.parametrize("how", ["forgotten", "port closed"])
def test_a_put_that_is_cut_on_its_way_leaves_nothing(cluster: str, how: str) -> None:
    async def scenario() -> None:
        async with serving(cluster, stall=60.0) as port:
            port.server.expect("t1", 10, "c-1")
            sock = dial_data(port.address, "PUT", "t1")
            sock.sendall(b"abc")
            await until(lambda: present(cluster))
            port.server.forget("t1") if how == "forgotten" else port.server.close()
            assert await closed_without_a_word(sock)

    run(scenario)


def test_closing_removes_what_landed_and_nobody_took(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.expect("t1", 3, "c-1")
            with filled(cluster, b"abc") as segment:
                await in_thread(put_segment, port.address, "t1", segment)
                segment.unlink()

    run(scenario)
