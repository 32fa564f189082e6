"""Preloaded: the agent's end of a process that imports and then waits, to be forked or to become a worker itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from jdist.agent.starters.forkserver import Fork, Forked, Loaded
from jdist.core.errors import LaunchError

_FORK_TIMEOUT = 30.0


class Preloaded:
    """One such process. Its socket's other end is in jdist/agent/starters/forkserver."""

    def __init__(self, ours: socket.socket, pid: int):
        self.pid = pid
        self.is_loaded = False
        self._pidfd = os.pidfd_open(pid)
        self._socket = ours
        self._socket.setblocking(False)
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(ours, self._readable)

    @classmethod
    def spawn(cls, role: str, modules: Sequence[str], env: dict[str, str]) -> Preloaded:
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
        loaded = msgspec.msgpack.decode(await self._answer(timeout, "import torch"), type=Loaded)
        if loaded.error:
            raise LaunchError(f"{socket.gethostname()}: a worker's imports failed:\n{loaded.error}")
        self.is_loaded = True

    async def fork(self, fork: Fork, fd: int | None = None) -> Forked:
        """Start a worker (a spare: become it), which gets ``fd`` as well. Raises LaunchError, OSError."""
        socket.send_fds(self._socket, [msgspec.msgpack.encode(fork)], [] if fd is None else [fd])
        return msgspec.msgpack.decode(await self._answer(_FORK_TIMEOUT, "start a worker"), type=Forked)

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

    def leave(self) -> None:
        """Let go of the socket; the process lives on."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            os.close(self._pidfd)
            self._pidfd = -1

    def close(self) -> None:
        """End the process; what was forked from it lives on."""
        if self._pidfd >= 0:
            self.signal(signal.SIGKILL)
            self.leave()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that keep messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
