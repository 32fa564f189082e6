"""Tunnels: what connections through one stream deliver, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

import pytest

from jdist.core.errors import ConnectionLost
from jdist.wire.transport.tunnel import OPEN, Address, Tunnel, TunnelConnection
from support.port import run, until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LARGE = 20 << 20  # Bytes: several windows.


class Ends:
    """Both ends of a tunnel, and a port here that leads to a server there."""

    def __init__(self, near: Tunnel, far: Tunnel, port: int):
        self.near = near
        self.far = far
        self.port = port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    @property
    def open(self) -> int:
        return len(self.near._connections) + len(self.far._connections)


@contextlib.asynccontextmanager
async def ends(
    serve: Serve, answer: Callable[[bytes], Awaitable[bytes]] | None = None, dials: Collection[Address] | None = None
) -> AsyncIterator[Ends]:
    """``dials``: the only addresses that the far end dials; if there are none, the server's."""
    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    there = server.sockets[0].getsockname()
    only = None if dials is None else dials or {there}
    near, far = Tunnel(None, lambda: None), Tunnel(answer or no_answer, lambda: None, dials=only)
    for reader, writer in ((near, far), (far, near)):  # two pipes, as a login is
        outlet, inlet = os.pipe()
        await loop.connect_read_pipe(lambda reader=reader: reader, os.fdopen(outlet, "rb", buffering=0))
        await loop.connect_write_pipe(lambda writer=writer: writer.output, os.fdopen(inlet, "wb", buffering=0))
    listener = await loop.create_server(lambda: TunnelConnection(lambda c: near.carry(c, there)), "127.0.0.1", 0)
    try:
        yield Ends(near, far, listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        server.close()
        near.close()
        far.close()
        await asyncio.sleep(0)


async def no_answer(_: bytes) -> bytes:
    return b""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_bytes_arrive_whole_and_in_order_both_ways_and_so_do_both_ends() -> None:
    async def scenario() -> None:
        async with ends(echo) as tunnel:
            reader, writer = await tunnel.connect()
            data = b"".join(n.to_bytes(4, "big") for n in range(LARGE // 4))

            async def send() -> None:
                writer.write(data)
                await writer.drain()
                writer.write_eof()

            sending = asyncio.create_task(send())
            assert await reader.read(-1) == data
            await sending
            writer.close()
            await until(lambda: not tunnel.open)

    run(scenario)


def test_what_is_sent_with_the_connection_is_not_lost() -> None:
    async def scenario() -> None:
        async with ends(echo) as tunnel:
            for _ in range(50):
                reader, writer = await tunnel.connect()
                writer.write(b"at once")
                assert await reader.readexactly(7) == b"at once"
                writer.close()

    run(scenario)


def test_a_connection_that_nobody_reads_delays_no_other() -> None:
    async def scenario() -> None:
        began = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if await reader.readline() == b"flood\n":
                began.set()
                with contextlib.suppress(ConnectionError):
                    for _ in range(LARGE >> 16):
                        writer.write(bytes(1 << 16))
                        await writer.drain()
            else:
                writer.write(b"here\n")
            writer.close()

        async with ends(serve) as tunnel:
            _, flooded = await tunnel.connect()
            flooded.write(b"flood\n")
            await began.wait()
            for _ in range(20):
                reader, writer = await tunnel.connect()
                writer.write(b"other\n")
                async with asyncio.timeout(10):
                    assert await reader.readline() == b"here\n"
                writer.close()
            flooded.transport.abort()
            await until(lambda: not tunnel.open)

    run(scenario)


@pytest.mark.parametrize("is_reset", [False, True], ids=["in order", "reset"])
def test_the_way_in_which_a_connection_ends_there_is_the_way_in_which_it_ends_here(is_reset: bool) -> None:
    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            if is_reset:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                writer.transport.abort()
            writer.close()

        async with ends(serve) as tunnel:
            reader, writer = await tunnel.connect()
            writer.write(b"end\n")
            if is_reset:
                with pytest.raises(ConnectionError):
                    await reader.read()
            else:
                assert await reader.read() == b""
            writer.close()
            await until(lambda: not tunnel.open)

    run(scenario)


@pytest.mark.parametrize("by", ["a break", "bye", "the process's end", "the end of one that is no client"])
def test_connections_end_as_the_tunnel_does(by: str) -> None:
    async def scenario() -> None:
        found: list[str] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"here\n")
            try:
                await reader.read()
                found.append("in order")
            except ConnectionError:
                found.append("reset")
            writer.close()

        async with ends(serve, dials=set() if by == "the end of one that is no client" else None) as tunnel:
            reader, writer = await tunnel.connect()
            assert await reader.readline() == b"here\n"
            if by == "a break":
                tunnel.near.close()
                with pytest.raises(ConnectionError):
                    await reader.read()
            elif by == "bye":
                tunnel.near.close(in_order=True)
            else:
                tunnel.far.eof_received()  # ssh passes on that its input has ended, and is still there
            await until(lambda: found)
            writer.close()
            assert found == ["in order" if by in ("bye", "the process's end") else "reset"]

    run(scenario)


def test_the_far_end_cannot_dial_from_here() -> None:
    async def scenario() -> None:
        async with ends(echo) as tunnel:
            tunnel.far.send(OPEN, 1, f"{tunnel.port} 127.0.0.1".encode())
            await until(lambda: tunnel.near.is_over)
            assert tunnel.open == 0

    run(scenario)


def test_what_comes_before_there_is_a_tunnel_waits_in_the_connection() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        waiting: list[TunnelConnection] = []
        listener = await loop.create_server(lambda: TunnelConnection(waiting.append), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(bytes(LARGE))
        await until(lambda: waiting and waiting[0]._unsent)
        await asyncio.sleep(0.2)
        assert len(waiting[0]._unsent) < 1 << 20
        async with ends(echo) as tunnel:
            there = await asyncio.start_server(echo, "127.0.0.1", 0)
            tunnel.near.carry(waiting[0], there.sockets[0].getsockname())
            writer.write_eof()
            assert len(await reader.read(-1)) == LARGE
            writer.close()
            there.close()
        listener.close()

    run(scenario)


def test_where_nobody_listens_the_connection_is_reset() -> None:
    async def scenario() -> None:
        async with ends(echo) as tunnel:
            with socket.create_server(("127.0.0.1", 0)) as gone:
                there = gone.getsockname()
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(
                lambda: TunnelConnection(lambda c: tunnel.near.carry(c, there)), "127.0.0.1", 0
            )
            reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
            with pytest.raises(ConnectionError):
                await reader.read()
            writer.close()
            listener.close()

    run(scenario)


def test_a_request_gets_its_own_answer() -> None:
    async def scenario() -> None:
        async def answer(request: bytes) -> bytes:
            await asyncio.sleep(0.01 * (9 - int(request)))  # the last is answered first
            return request * 2

        async with ends(echo, answer) as tunnel:
            answers = await asyncio.gather(*(tunnel.near.ask(str(n).encode(), 20.0) for n in range(10)))
            assert answers == [str(n).encode() * 2 for n in range(10)]

    run(scenario)


def test_a_request_that_gets_no_answer_fails_in_time_and_at_the_end_of_the_tunnel() -> None:
    async def scenario() -> None:
        async def answer(_: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        async with ends(echo, answer) as tunnel:
            with pytest.raises(TimeoutError):
                await tunnel.near.ask(b"x", 0.05)
            asking = asyncio.create_task(tunnel.near.ask(b"x", 20.0))
            await asyncio.sleep(0)
            tunnel.far.close()
            with pytest.raises(ConnectionLost):
                await asking
            with pytest.raises(ConnectionLost):
                await tunnel.near.ask(b"x", 20.0)

    run(scenario)


def test_something_else_on_the_stream_ends_the_tunnel() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair()
        ended = asyncio.Event()
        tunnel = Tunnel(None, ended.set)
        await loop.create_connection(lambda: tunnel, sock=one)
        with other:
            await loop.sock_sendall(other, b"Connection to login closed by remote host.\n")
            async with asyncio.timeout(20):
                await ended.wait()

    run(scenario)


def test_an_end_dials_only_the_addresses_that_it_was_given() -> None:
    async def scenario() -> None:
        async with ends(echo, dials={("127.0.0.1", 1)}) as tunnel:
            reader, writer = await tunnel.connect()
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            await until(lambda: not tunnel.open)
            assert tunnel.near.is_idle

    run(scenario)
