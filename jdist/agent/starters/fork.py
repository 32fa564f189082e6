"""ForkStarter: forks a node's processes from one that has torch imported; SpawnStarter: where forking is unwise.

The forkserver is warmed up by another one. It is forked from the first, imports what the first steps of a training
import lazily, and then takes the first one's place; so no start waits for it.
"""

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys

import msgspec

from jdist.agent.starters.forkserver import ProcessRequest
from jdist.agent.starters.prewarm import PreloadedProcess, Starter
from jdist.core.errors import LaunchError

# Modules that a worker needs before its first cell; imported once per node.
_PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "ipykernel.ipkernel",
    "ipykernel.kernelapp",
    "ipykernel.debugger",
    "IPython.core.ultratb",
    "stack_data",
    "pygments.formatters.terminal256",
    "jdist.worker.main",
    "jdist.worker.groups.store_process",
)

# Imported as well where installed. Not the inline backend: its own import looks for the shell to display in.
_IF_INSTALLED = ("matplotlib.figure", "matplotlib.backends.backend_agg")

# Imported by the first optimizer, for 1 to 2 seconds. Nothing here may run a parallel op or touch CUDA.
_WARM = ("torch._dynamo",)

_LOAD_TIMEOUT = 300.0
_WORKER = "jdist.worker.main:main"


class ForkStarter(Starter):
    """Starts processes by forking from one that has everything imported, and that a warm one replaces."""

    _ahead_kind = "forkserver"

    def __init__(self) -> None:
        super().__init__()
        self._lock = asyncio.Lock()
        self._server = _preload("server")

    async def start(self, request: ProcessRequest) -> int:
        return await self._fork(request, None)

    async def _fork(self, request: ProcessRequest, fd: int | None) -> int:
        async with self._lock:
            if not self._server.is_loaded:
                await self._load()
            try:
                started = await self._server.start(request, fd)
            except (OSError, LaunchError):
                self._restart()
                await self._load()
                started = await self._server.start(request, fd)
        if not started.pid:
            raise LaunchError(f"the forkserver on {socket.gethostname()} could not start a worker: {started.error}")
        return started.pid

    async def _load(self) -> None:
        try:
            await self._server.load(_LOAD_TIMEOUT)
        except LaunchError:
            self._restart()  # what is missing may be installed by the next attempt
            raise

    def _restart(self) -> None:
        if self._ahead is self._server:
            self._ahead = None
        self._server.close()
        self._server = _preload("server")

    async def _begin_ahead(self) -> PreloadedProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = ProcessRequest("jdist.agent.starters.forkserver:succeed", msgspec.msgpack.encode(_WARM), "", {})
        try:
            with theirs:
                return PreloadedProcess(ours, await self._fork(request, theirs.fileno()))
        except BaseException:
            ours.close()
            raise

    async def _take_over(self, ahead: PreloadedProcess) -> None:
        async with self._lock:
            self._server.close()
            self._server = ahead
        await super()._take_over(ahead)

    def close(self) -> None:
        """End the forkserver and its successor; the workers live on."""
        self._server.close()
        super().close()


class SpawnStarter(Starter):
    """Starts processes as fresh interpreters. A warm spare, if there is one, becomes the next worker at once."""

    _ahead_kind = "spare"

    async def start(self, request: ProcessRequest) -> int:
        spare = self._ahead
        if spare is not None and spare.is_loaded and request.entry == _WORKER:
            self._ahead = None
            try:
                started = await spare.start(request)
            except (OSError, LaunchError):  # it has ended
                spare.close()
            else:
                spare.release()
                return started.pid
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 — starting it takes a millisecond
                [sys.executable, "-P", "-m", "jdist.worker", request.entry],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **request.env},
                start_new_session=True,
            )
        finally:
            os.close(log)
        process.returncode = 0  # the agent's reaper waits for it, not Popen
        if process.stdin is not None:
            process.stdin.write(request.spec + b"\n")
            process.stdin.close()
        return process.pid

    async def _begin_ahead(self) -> PreloadedProcess:
        return _preload("spare", *_WARM)


def _preload(role: str, *more: str) -> PreloadedProcess:
    """A fresh interpreter that imports what a worker needs, as far as it is installed."""
    optional = [name for name in _IF_INSTALLED if importlib.util.find_spec(name.partition(".")[0])]
    env = dict(os.environ)
    env.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # ipykernel's, before the import
    env.setdefault("OMP_NUM_THREADS", "1")  # a forkserver with a thread pool would fork broken children
    return PreloadedProcess.spawn(role, [*_PRELOAD, *optional, *more], env)
