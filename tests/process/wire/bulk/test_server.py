"""The data port: who may come in for what, and that a name serves once."""

from __future__ import annotations

import asyncio
import os
import resource
import socket

import pytest

from jdist.wire.bulk import server
from jdist.wire.transport import public_port
from jdist.wire.transport.dialing import dial_data, ping
from support.port import closed_without_a_word, in_thread, pull, run, serving, until


@pytest.mark.parametrize("verb", ["PUT", "GET", "LIFE"])
def test_a_name_that_nobody_announced_is_shown_the_door(cluster: str, verb: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            assert await closed_without_a_word(dial_data(port.address, verb, "unknown"))

    run(scenario)


@pytest.mark.parametrize(
    ("announced", "verb"), [("life", "PUT"), ("life", "GET"), ("put", "LIFE"), ("put", "DELETE"), ("pass", "LIFE")]
)
def test_a_name_serves_for_what_it_was_announced(cluster: str, announced: str, verb: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            announce = {"life": port.server.allow_liveness, "put": port.server.expect, "pass": port.server.pass_on}
            announce[announced](*(("n",) if announced == "life" else ("n", 5, "c-1")))
            assert await closed_without_a_word(dial_data(port.address, verb, "n"))
            assert not port.ended

    run(scenario)


@pytest.mark.parametrize(
    "header", [b"HELLO\n", b"GET / HTTP/1.1\n", b"JDIST1 PUT\n", b"JDIST2 PUT n\n", b"\xff\xff \xfe n\n", b"x" * 400]
)
def test_another_protocol_is_shown_the_door(cluster: str, header: bytes) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.expect("n", 5, "c-1")
            sock = socket.create_connection(port.address)
            sock.sendall(header)
            assert await closed_without_a_word(sock)

    run(scenario)


@pytest.mark.parametrize("way", ["kept", "passed on"])
def test_a_second_put_of_the_same_name_changes_nothing(cluster: str, way: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            (port.server.expect if way == "kept" else port.server.pass_on)("t1", 4, "c-1")
            first = dial_data(port.address, "PUT", "t1")
            first.sendall(b"ab")
            await until(lambda: port.server._transfers["t1"][0]._ends)
            assert await closed_without_a_word(dial_data(port.address, "PUT", "t1"))
            get = asyncio.create_task(pull(port, "t1", 4))
            first.sendall(b"cd")
            assert await in_thread(first.recv, 1) == b"k"
            assert await get == b"abcd"
            first.close()
            port.server.forget("t1")

    run(scenario)


def test_another_descriptor_than_is_left_does_not_end_the_port(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            waiting = [socket.create_connection(port.address) for _ in range(3)]
            await asyncio.sleep(0)
            lowest = os.open(os.devnull, os.O_RDONLY)
            os.close(lowest)
            sock = socket.socket()
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
            try:
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, port.address)
                await asyncio.sleep(0.3)  # the port tries to take it in, and cannot
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            with sock:
                assert await ping(port.address, cluster), "it takes in whoever comes now"
            for other in waiting:
                other.close()

    run(scenario)


def test_a_flood_of_newcomers_makes_room_for_itself(cluster: str) -> None:
    async def scenario() -> None:
        async with serving(cluster) as port:
            flood = [socket.create_connection(port.address) for _ in range(public_port.MOST_PENDING + 40)]
            await until(lambda: len(port.server._pending) == public_port.MOST_PENDING)
            assert await ping(port.address, cluster)
            assert await closed_without_a_word(flood[0])
            for sock in flood[1:]:
                sock.close()

    run(scenario)


def test_a_lifeline_that_nobody_dials_counts_as_broken(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LIFE_WITHIN", 0.01)

    async def scenario() -> None:
        async with serving(cluster) as port:
            port.server.allow_liveness("n")
            await port.noticed.wait()
            assert port.ended == ["n broke"]
            assert await closed_without_a_word(dial_data(port.address, "LIFE", "n"))

    run(scenario)
