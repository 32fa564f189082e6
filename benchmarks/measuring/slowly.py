"""A network with latency: bytes between a node's agent and the controller are delayed in each direction."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable
from pathlib import Path

import msgspec

from jdist.launch.join import LocalLauncher
from jdist.wire.transport.invitations import JoinLine


class LongWire:
    """Listens on the loopback, and passes on to ``port`` what comes, ``delay`` seconds later; the same back.

    While it is cut, nothing passes and nobody is told. ``carried`` counts bytes.
    """

    def __init__(self, port: int, delay: float):
        self.carried = 0
        self.is_cut = False
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
        # asyncio sets it only on sockets that were made with TCP's number.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 18):
                while self.is_cut:  # noqa: ASYNC110 — another thread mends it
                    await asyncio.sleep(0.01)
                self.carried += len(data)
                if self._delay:
                    self._loop.call_later(self._delay, writer.write, data)
                else:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass  # that end is gone: the other is told
        self._loop.call_later(self._delay, writer.close)


class WireProcess:
    """A long wire in a process of its own, so that it does not share an interpreter with what is measured."""

    def __init__(self, port: int, delay: float):
        words = [sys.executable, "-c", f"from measuring.slowly import serve; serve({port}, {delay})"]
        here = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": here}
        )
        self.port = int(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _tell(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._read()

    def cut(self) -> None:
        self._tell("cut")

    def mend(self) -> None:
        self._tell("mend")

    @property
    def carried(self) -> int:
        return int(self._tell("count"))

    def end(self) -> None:
        self._process.communicate("")


def serve(port: int, delay: float) -> None:
    """Be the process of a :class:`WireProcess`; it ends with its standard input."""
    wire = LongWire(port, delay)
    print(wire.port, flush=True)
    for word in sys.stdin:
        wire.is_cut = {"cut": True, "mend": False}.get(word.strip(), wire.is_cut)
        print(wire.carried, flush=True)


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
