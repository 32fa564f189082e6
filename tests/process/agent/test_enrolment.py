"""Enrolling: of the addresses at which the controller answers, all nodes take the earliest of the line."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Sequence

import pytest

from jdist.agent import link
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import KeyPair

CLUSTER = "0123456789ab"
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


async def chosen(answering: dict[str, asyncio.Event]) -> str:
    """What is taken where the second answers at once and others when their event is set; the rest refuses."""
    second = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readline()
            host = writer.get_extra_info("sockname")[0]
            if host in answering:
                await second.wait()
                await answering[host].wait()
            writer.write(b"k")
            await writer.drain()
            second.set()
        finally:
            writer.close()

    listening = bound_to_one_port(["127.0.0.2", *answering])
    port = listening[0].getsockname()[1]
    servers = [await asyncio.start_server(serve, sock=each) for each in listening]
    key = KeyPair.make()
    line = JoinLine(CLUSTER, HOSTS, port, port, key.public, key)
    try:
        return await link._first(line)
    finally:
        for server in servers:
            server.close()


def bound_to_one_port(hosts: Sequence[str]) -> list[socket.socket]:
    """A socket for each address, all with the same port; one that is free on the first may be taken on another."""
    while True:
        with contextlib.ExitStack() as stack:
            found: list[socket.socket] = []
            for host in hosts:
                sock = stack.enter_context(socket.socket())
                try:
                    sock.bind((host, found[0].getsockname()[1] if found else 0))
                except OSError as e:
                    if not found or e.errno != errno.EADDRINUSE:
                        raise
                    break
                found.append(sock)
            else:
                stack.pop_all()
                return found


def test_an_earlier_address_that_answers_a_little_later_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> str:
        soon = asyncio.Event()
        soon.set()
        return await chosen({"127.0.0.1": soon, "127.0.0.3": soon})

    monkeypatch.setattr(link, "_HEAD_START", 20.0)
    assert asyncio.run(play()) == "127.0.0.1"


def test_an_earlier_address_that_says_nothing_is_not_waited_for() -> None:
    async def play() -> str:
        return await chosen({"127.0.0.1": asyncio.Event()})

    assert asyncio.run(play()) == "127.0.0.2"


def test_where_nobody_answers_there_is_none() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        key = KeyPair.make()
        port = s.getsockname()[1]
        line = JoinLine(CLUSTER, HOSTS, port, port, key.public, key)
        assert asyncio.run(link._first(line)) == ""
