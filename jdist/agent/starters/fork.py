"""ForkStarter: forks a node's processes from one that has torch imported, and warms that up while the node is idle.

Another forkserver does the warming up. It is forked from the first, imports what the first steps of a training import
lazily, and then takes the first one's place; so no start waits for it.
"""

import asyncio
import importlib.util
import logging
import os
import signal
import socket

import msgspec

from jdist.agent.starters.base import ProcessRequest
from jdist.agent.starters.forkserver import SuccessorSpec
from jdist.agent.starters.prewarm import PreloadedProcess, socket_pair
from jdist.core.errors import LaunchError

_log = logging.getLogger("jdist.agent")

# Modules that a worker needs before its first cell; imported once per node.
PRELOAD = (
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
IF_INSTALLED = ("matplotlib.figure", "matplotlib.backends.backend_agg")

# Imported by the first optimizer, for 1 to 2 seconds. Nothing here may run a parallel op or touch CUDA.
WARM = ("torch._dynamo",)

_LOAD_TIMEOUT = 300.0


class ForkStarter:
    """Starts processes by forking from one that has everything imported."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._server = _spawn()
        self._successor: PreloadedProcess | None = None
        self._is_warm = False

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
        self._server.close()
        self._server = _spawn()
        self._is_warm = False

    async def warm(self) -> None:
        if self._is_warm or self._successor is not None:
            return
        ours, theirs = socket_pair()
        spec = msgspec.msgpack.encode(SuccessorSpec(os.getpid(), WARM))
        request = ProcessRequest("jdist.agent.starters.forkserver:succeed", spec, "", {})
        try:
            with theirs:
                pid = await self._fork(request, theirs.fileno())
            successor = self._successor = PreloadedProcess(ours, pid)
        except (OSError, LaunchError) as e:
            ours.close()
            _log.warning("no warm forkserver: %s", e)
            return
        try:
            await successor.load(None)  # for as long as cells stop it
        except LaunchError as e:
            successor.close()
            _log.warning("no warm forkserver: %s", e)
        else:
            await self._replace_server(successor)
        finally:
            self._successor = None

    async def _replace_server(self, successor: PreloadedProcess) -> None:
        async with self._lock:
            self._server.close()
            self._server = successor
            self._is_warm = True
            successor.signal(signal.SIGCONT)  # a cell may have stopped it when it was done

    def pause(self) -> None:
        if self._successor is not None:
            self._successor.signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._successor is not None:
            self._successor.signal(signal.SIGCONT)

    def close(self) -> None:
        """End the forkserver and its successor; the workers live on."""
        self._server.close()
        if self._successor is not None:
            self._successor.close()


def _spawn() -> PreloadedProcess:
    return PreloadedProcess.spawn("server", preload(), preload_environment())


def preload() -> list[str]:
    """Modules that a worker needs, as far as they are installed."""
    return [*PRELOAD, *(name for name in IF_INSTALLED if importlib.util.find_spec(name.partition(".")[0]))]


def preload_environment() -> dict[str, str]:
    """Environment of a process that imports them."""
    env = dict(os.environ)
    env.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # ipykernel's, before the import
    env.setdefault("OMP_NUM_THREADS", "1")  # a forkserver with a thread pool would fork broken children
    return env
