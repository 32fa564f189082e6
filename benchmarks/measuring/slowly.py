"""A network with latency: bytes between a node's agent and the controller are delayed in each direction."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable
from pathlib import Path

import msgspec

from jdist.launch.join import LocalLauncher
from jdist.wire.transport.invitations import JoinLine


class LongWire:
    """Listens on the loopback, and passes on to ``port`` what comes, ``delay`` seconds later; the same back."""

    def __init__(self, port: int, delay: float):
        self._target = port
        self._delay = delay
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._joined, sock=self._listener))
        self._loop.run_forever()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 18):
                self._loop.call_later(self._delay, writer.write, data)
        except OSError:
            pass  # that end is gone: the other is told
        self._loop.call_later(self._delay, writer.close)


class SlowLauncher(LocalLauncher):
    """Agents on this machine that reach the controller over a long wire."""

    is_remote = True
    delay = 0.0

    async def launch(self, join_line: Awaitable[str]) -> None:
        await super().launch(self._over_the_wire(join_line))

    async def _over_the_wire(self, join_line: Awaitable[str]) -> str:
        line = JoinLine.decode(await join_line)
        wire = LongWire(line.data_port, self.delay)
        return msgspec.structs.replace(line, hosts=("127.0.0.1",), control_port=wire.port, data_port=wire.port).encode()


def register(folder: str) -> str:
    """The name under which :class:`SlowLauncher` can be started; ``folder`` must be on sys.path."""
    info = Path(folder) / "slow_launcher-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-launcher\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[jdist.launchers]\nslow = {__name__}:SlowLauncher\n")
    return "slow"


class Echo:
    """Something at the end of a long wire that sends back what it gets: the wire's round trip."""

    def __init__(self, delay: float):
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        wire = LongWire(self._listener.getsockname()[1], delay)
        self._near = socket.create_connection(("127.0.0.1", wire.port))

    def _serve(self) -> None:
        far, _ = self._listener.accept()
        while data := far.recv(64):
            far.sendall(data)

    def round_trip(self) -> float:
        """Seconds."""
        began = time.perf_counter()
        self._near.sendall(b"x")
        self._near.recv(1)
        return time.perf_counter() - began
