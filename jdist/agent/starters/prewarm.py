"""Prewarming, in the agent: processes that have imported what workers need, and the time at which more is imported.

Imports are done ahead when the node has been idle for a while. Never while a cell runs: what is under way then is
suspended, and goes on when the node is idle again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence

import msgspec

from jdist.agent.starters.base import CreateTask, ImportsDone, ProcessRequest, ProcessStarted, Starter
from jdist.core.errors import LaunchError

IDLE = 2.0  # Seconds without a cell after which a node counts as idle.
_FORK_TIMEOUT = 30.0


class Prewarmer:
    """Knows which ranks run a cell, and warms the starter up while none does. On the running loop."""

    def __init__(self, starter: Starter, create_task: CreateTask, idle: float = IDLE):
        self.is_enabled = True
        self._starter = starter
        self._create_task = create_task
        self._idle = idle
        self._busy: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def record_started(self, ranks: Iterable[int]) -> None:
        """These ranks run a cell."""
        self._busy.update(ranks)
        if self._busy:
            self.stop()
            self._starter.pause()

    def record_ended(self, rank: int) -> None:
        """This rank runs no cell (any more)."""
        self._busy.discard(rank)
        if not self._busy:
            self.stop()
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._warm)

    def _warm(self) -> None:
        self._timer = None
        self._starter.resume()
        if self.is_enabled:
            self._create_task(self._starter.warm())

    def stop(self) -> None:
        """Begin nothing from now on until a rank's cell has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class PreloadedProcess:
    """A process that imports and then waits, to be forked or to become a worker itself; see starters/forkserver."""

    def __init__(self, ours: socket.socket, pid: int):
        self.pid = pid
        self.is_loaded = False
        self._pidfd = os.pidfd_open(pid)
        self._socket = ours
        self._socket.setblocking(False)
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(ours, self._readable)

    @classmethod
    def spawn(cls, role: str, modules: Sequence[str], env: dict[str, str]) -> PreloadedProcess:
        """A fresh interpreter as a "server" (forks on request) or a "spare" (becomes the one worker that is asked for).

        It writes to this process's own standard error until then.
        """
        ours, theirs = socket_pair()
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "jdist.agent.starters.forkserver", role),
                    *(str(theirs.fileno()), str(os.getpid()), *modules),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env,
            )
        process.returncode = 0  # the agent's reaper waits for it, not Popen
        return cls(ours, process.pid)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._socket)
        self._answers.put_nowait(data)

    async def load(self, timeout: float | None) -> None:
        """Wait for the imports; None: as long as the process lives. Raises LaunchError when they fail."""
        done = msgspec.msgpack.decode(await self._answer(timeout, "import torch"), type=ImportsDone)
        if done.error:
            raise LaunchError(f"{socket.gethostname()}: a worker's imports failed:\n{done.error}")
        self.is_loaded = True

    async def start(self, request: ProcessRequest, fd: int | None = None) -> ProcessStarted:
        """Start a worker (a spare: become it), which gets ``fd`` as well. Raises LaunchError, OSError."""
        socket.send_fds(self._socket, [msgspec.msgpack.encode(request)], [] if fd is None else [fd])
        return msgspec.msgpack.decode(await self._answer(_FORK_TIMEOUT, "start a worker"), type=ProcessStarted)

    async def _answer(self, timeout: float | None, doing: str) -> bytes:
        host = socket.gethostname()
        try:
            data = await asyncio.wait_for(self._answers.get(), timeout)
        except TimeoutError:
            raise LaunchError(f"the forkserver on {host} did not {doing} within {timeout:.0f} s") from None
        if not data:
            raise LaunchError(f"the forkserver on {host} ended before it could {doing}")
        return data

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; to a process that has ended, nothing."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)  # type: ignore[attr-defined,unused-ignore]

    def release(self) -> None:
        """Close the socket; the process lives on."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            os.close(self._pidfd)
            self._pidfd = -1

    def close(self) -> None:
        """End the process; what was forked from it lives on."""
        if self._pidfd >= 0:
            self.signal(signal.SIGKILL)
            self.release()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
