"""Kernel: one worker process of a node, an ipykernel that the agent starts, connects to and reaps."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from jupyter_client.session import Session
from msgspec import Struct

from jdist.agent.processes.exits import ChildReaper
from jdist.agent.processes.jupyter_messages import KernelMessage, parse
from jdist.agent.starters.forkserver import ProcessRequest
from jdist.agent.starters.prewarm import Starter
from jdist.core.messages.base import AGENT_IDENTITY
from jdist.core.settings import WorkerSpec
from jdist.wire.transport.sockets import SUB, Port, dial_ipc


class WorkerPlace(Struct, frozen=True):
    """Where a worker was started, and the files around it."""

    directory: str
    number: int  # Serial number of the process on this agent, for the names of its files and sockets.
    worker: int  # The worker's id, for life.
    rank: int  # Its rank when the process was started.
    incarnation: int
    gpu_index: int  # The GPU that is its own: the lowest that none of the node's other workers has.

    @property
    def connection_file(self) -> Path:
        return Path(self.directory) / f"kernel-{self.number}.json"

    @property
    def raw_log(self) -> str:
        """What the process itself wrote outside of any cell, such as the traceback of a crash."""
        return str(Path(self.directory) / f"kernel-{self.number}.raw.log")

    @property
    def identity(self) -> bytes:
        """The worker's identity at the agent's socket."""
        return b"w-%d" % self.number


class Kernel:
    """One worker's process and sockets.

    Callbacks: ``on_message(kernel, channel, message)``, and ``on_exit(kernel, wait_status)`` once.
    """

    def __init__(
        self,
        context: Any,
        place: WorkerPlace,
        reaper: ChildReaper,
        on_message: Callable[[Kernel, str, KernelMessage], None],
        on_exit: Callable[[Kernel, int | None], None],
    ):
        self.place = place
        self.worker = place.worker
        self.pid = 0
        self.is_dismissed = False  # The agent has ended it, or is about to: its end is not reported.
        self.is_subscribed = False  # Its output is received.
        self.has_greeted = False
        self.device = ""  # As its worker reported it last: "cpu", "cuda:0".
        self._reaper = reaper
        self._on_exit = on_exit
        self._pidfd = -1
        self._is_killed = False
        self._session = Session(key=os.urandom(16).hex().encode(), check_pid=False)
        self._session.pack = msgspec.json.encode  # a tenth of the time of the default
        prefix = str(Path(place.directory) / f"k{place.number}")
        ports = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
        self._files = [f"{prefix}-{n}" for n in ports.values()]
        _write_connection_file(place.connection_file, prefix, ports, self._session.key)

        def on(channel: str) -> Callable[[list[bytes]], None]:
            return lambda frames: on_message(self, channel, parse(frames))

        self._stdin: Port = dial_ipc(context, f"{prefix}-3", on("stdin"), identity=AGENT_IDENTITY)
        self._iopub: Port = dial_ipc(context, f"{prefix}-2", on("iopub"), kind=SUB)

    async def start(self, starter: Starter, spec: WorkerSpec, env: dict[str, str]) -> None:
        """Start the process; ``on_exit`` is called once when it ends. Raises LaunchError."""
        request = ProcessRequest("jdist.worker.main:main", msgspec.json.encode(spec), self.place.raw_log, env)
        self.pid = await starter.start(request)
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)
        if self._is_killed:
            self.kill()

    @property
    def is_up(self) -> bool:
        """Whether its worker is ready for cells."""
        return self.is_subscribed and self.has_greeted

    def reply_input(self, text: str) -> None:
        """Pass on the line that the user typed."""
        self._stdin.send(self._session.serialize(self._session.msg("input_reply", {"value": text, "status": "ok"})))

    def dismiss(self) -> None:
        """Kill it; its end is not reported."""
        self.is_dismissed = True
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as soon as the process is there; ``on_exit`` follows."""
        self._is_killed = True
        if self._pidfd >= 0:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore]
            except ProcessLookupError:
                return

    def _reap(self) -> None:
        status = self._reaper.status(self.pid)
        self.close()
        self._on_exit(self, status)

    def close(self) -> None:
        """Close sockets and remove the files; the process is not touched."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        for port in (self._stdin, self._iopub):
            port.close()
        for path in (*self._files, str(self.place.connection_file)):
            Path(path).unlink(missing_ok=True)


def _write_connection_file(path: Path, prefix: str, ports: dict[str, int], key: bytes) -> None:
    info = {"transport": "ipc", "ip": prefix, **ports, "key": key.decode(), "signature_scheme": "hmac-sha256"}
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(msgspec.json.encode({**info, "kernel_name": "jdist"}))
