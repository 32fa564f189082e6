"""TransferRelay: bytes are passed on whole or not at all; an end that dies or stands still frees the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable

import pytest

from jdist.core.errors import ConnectionLost
from jdist.wire.bulk.server import copy, splice
from jdist.wire.transport.dialing import Receiver, dial_data, put_segment, receive_into
from jdist.wire.values.segments import new_memory, sweep
from support.port import DEADLINE, closed_without_a_word, filled, in_thread, pull, run, serving, until


@pytest.mark.parametrize("first", ["PUT", "GET"])
@pytest.mark.parametrize("size", [1, 4096, 20_000_001])
@pytest.mark.parametrize("near", [False, True], ids=["far", "near"])
def test_what_is_put_is_passed_on_whole_and_rests_nowhere(cluster: str, size: int, first: str, near: bool) -> None:
    data = os.urandom(min(size, 4099)) * (size // 4099 + 1)

    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.pass_on("t1", size, "c-1")
            with filled(cluster, data[:size]) as segment:
                put = asyncio.to_thread(put_segment, port.address, "t1", segment)
                get = pull(port, "t1", size, near)
                ways = [asyncio.create_task(way) for way in ((put, get) if first == "PUT" else (get, put))]
                done = await asyncio.gather(*ways)
                segment.unlink()
                assert data[:size] in done
                await until(lambda: not port.server._transfers)
                assert sweep(cluster) == []

    run(scenario)


def test_a_slow_receiver_slows_the_sender(cluster: str) -> None:
    """What is on its way is what TCP buffers at most, not the value."""

    async def scenario() -> None:
        async with serving(cluster) as port:
            size = 256 << 20
            port.server.pass_on("t1", size, "c-1")
            get, put = dial_data(port.address, "GET", "t1"), dial_data(port.address, "PUT", "t1")
            put.setblocking(False)
            sent, piece, still = 0, bytes(1 << 20), 0
            while still < 20:
                try:
                    sent += put.send(piece)
                    still = 0
                except BlockingIOError:
                    still += 1
                    await asyncio.sleep(0.01)
            assert 0 < sent < size // 2
            put.close()
            get.close()

    run(scenario)


def test_elsewhere_than_on_linux_bytes_pass_through_a_buffer() -> None:
    data = os.urandom(3_000_001)
    put, source = socket.socketpair()
    sink, get = socket.socketpair()
    memory = new_memory(len(data))
    threads = [
        threading.Thread(target=put.sendall, args=(data,)),
        threading.Thread(target=receive_into, args=(get, memory)),
    ]
    for thread in threads:
        thread.start()
    copy(source, sink, len(data), DEADLINE)
    for thread in threads:
        thread.join(DEADLINE)
    assert bytes(memory) == data
    for sock in (put, source, sink, get):
        sock.close()


@pytest.mark.parametrize("move", [splice, copy])
def test_a_source_that_ends_early_is_an_error(move: Callable[..., None]) -> None:
    put, source = socket.socketpair()
    sink, get = socket.socketpair()
    with put, source, sink, get:
        put.sendall(b"abc")
        put.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionLost, match="after 3 of 10 bytes"):
            move(source, sink, 10, DEADLINE)
        assert get.recv(10) == b"abc"


@pytest.mark.parametrize("move", [splice, copy])
@pytest.mark.parametrize("still", ["source", "sink"])
def test_an_end_that_stands_still_is_given_up(move: Callable[..., None], still: str) -> None:
    put, source = socket.socketpair()
    sink, get = socket.socketpair()
    with put, source, sink, get:
        size = 10 if still == "source" else 64 << 20
        feeding = threading.Thread(target=feed, args=(put, size - 1))
        feeding.start()
        with pytest.raises(TimeoutError):
            move(source, sink, size, 0.2)
        source.shutdown(socket.SHUT_RDWR)
        feeding.join(DEADLINE)


def feed(sock: socket.socket, nbytes: int) -> None:
    """Send as much as the other end takes."""
    with contextlib.suppress(OSError):
        sock.sendall(bytes(nbytes))


@pytest.mark.parametrize("ends", ["PUT", "GET"])
def test_an_end_that_dies_ends_the_other(cluster: str, ends: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            size = 64 << 20
            port.server.pass_on("t1", size, "c-1")
            socks = {verb: dial_data(port.address, verb, "t1") for verb in ("PUT", "GET")}
            await in_thread(socks["PUT"].sendall, bytes(100_000))
            await in_thread(socks["GET"].recv, 1)
            socks.pop(ends).close()
            other = socks.popitem()[1]
            with pytest.raises((ConnectionLost, OSError)):
                if ends == "PUT":
                    await in_thread(receive_into, other, memoryview(bytearray(size)))
                else:
                    await in_thread(other.sendall, bytes(size))
            other.close()
            await until(lambda: not port.server._transfers)

    run(scenario)


@pytest.mark.parametrize("verb", ["PUT", "GET"])
def test_an_end_to_which_no_other_comes_is_given_up(cluster: str, verb: str) -> None:
    async def scenario() -> None:
        async with serving(cluster, stall=0.2) as port:
            port.server.pass_on("t1", 10, "c-1")
            assert await closed_without_a_word(dial_data(port.address, verb, "t1"))
            await until(lambda: not port.server._transfers)

    run(scenario)


@pytest.mark.parametrize("how", ["forgotten", "client gone", "port closed"])
@pytest.mark.parametrize("there", [("PUT",), ("GET",), ("PUT", "GET")], ids=str)
def test_a_passage_that_is_over_frees_its_ends(cluster: str, there: tuple[str, ...], how: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.pass_on("t1", 10, "c-1")
            port.server.pass_on("t2", 10, "c-2")
            socks = [dial_data(port.address, verb, "t1") for verb in there]
            await until(lambda: len(port.server._transfers["t1"][0]._ends) == len(there))  # type: ignore[union-attr]
            if how == "forgotten":
                port.server.forget("t1")
            elif how == "client gone":
                port.server.forget_all("c-1")
            else:
                port.server.close()
            for sock in socks:
                assert await closed_without_a_word(sock)
            assert set(port.server._transfers) == (set() if how == "port closed" else {"t2"})

    run(scenario)


@pytest.mark.parametrize("ends", ["PUT", "GET"])
def test_a_connection_that_was_handed_over_is_its_ends_own_affair(cluster: str, ends: str) -> None:
    """The port forgets it, and either end sees the other's end at once."""

    async def scenario() -> None:
        async with serving(cluster) as port:
            memory = new_memory(64 << 20)
            port.server.pass_on("t1", memory.nbytes, "c-1")
            put = dial_data(port.address, "PUT", "t1")
            receiver = Receiver(port.address, "t1", memory, port.server.near)
            getting = asyncio.create_task(in_thread(receiver.run))
            await in_thread(put.sendall, b"x" * (2 << 20))
            await until(lambda: memory[1] and not port.server._transfers)
            port.server.forget("t1")
            port.server.forget_all("c-1")
            if ends == "PUT":
                put.close()
            else:
                receiver.cut()
                with pytest.raises(OSError, match=r"reset|Broken"):
                    await in_thread(put.sendall, bytes(memory.nbytes))
                put.close()
            with pytest.raises(ConnectionLost):
                await getting

    run(scenario)
