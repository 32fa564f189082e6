"""A data port to try things at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from jdist.wire.bulk.server import DataServer
from jdist.wire.transport.dialing import Receiver
from jdist.wire.values.segments import Segment, new_memory

DEADLINE = 60.0


class Port:
    """A data server, and the liveness connections whose end it noticed."""

    def __init__(self, cluster: str, stall: float):
        self.ended: list[str] = []
        self.noticed = asyncio.Event()
        self.server = DataServer(cluster, self._note, stall)
        self.server.listen("127.0.0.1")
        self.address = ("127.0.0.1", self.server.port)

    def _note(self, name: str, is_dead: bool) -> None:
        self.ended.append(name if is_dead else f"{name} broke")
        self.noticed.set()


@contextlib.asynccontextmanager
async def serving(cluster: str, stall: float = 10.0) -> AsyncIterator[Port]:
    port = Port(cluster, stall)
    try:
        async with asyncio.timeout(DEADLINE):
            yield port
    finally:
        port.server.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """To its end, threads of transfers included."""
    began = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - began < DEADLINE


def filled(cluster: str, data: bytes) -> Segment:
    segment = Segment.create(cluster, len(data))
    segment.view[:] = data
    return segment


def present(cluster: str) -> list[str]:
    """The cluster's files in shared memory."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"jdist-{cluster}-")]


async def closed_without_a_word(sock: socket.socket) -> bool:
    """The peer ends the connection and sends nothing."""
    sock.settimeout(DEADLINE)
    try:
        return await asyncio.to_thread(sock.recv, 1) == b""
    except ConnectionResetError:
        return True
    finally:
        sock.close()


async def until(condition: Callable[[], object]) -> None:
    """What a transfer's thread does wakes nobody here; the scenario's deadline bounds the wait."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.to_thread(work, *args)


async def pull(port: Port, name: str, nbytes: int, near: bool = False) -> bytes:
    """GET into fresh memory."""
    memory = new_memory(nbytes)
    await in_thread(Receiver(port.address, name, memory, port.server.near if near else "").run)
    return bytes(memory)
