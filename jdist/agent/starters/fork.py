"""The nursery: forks a node's processes from one that has torch imported, and warms that up while the node is idle.

Warming up is another forkserver's work, which is forked from the first, imports what the first steps of a training
import lazily, and then takes the first one's place; so none is kept waiting for it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys

import msgspec

from jdist.agent.starters.forkserver import Fork, Succession
from jdist.agent.starters.prewarm import Preloaded, socket_pair
from jdist.core.errors import LaunchError

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
"""What a worker needs before its first cell; imported once per node."""

IF_INSTALLED = ("matplotlib.figure", "matplotlib.backends.backend_agg")
"""The same where it is there. Not the inline backend: at its own import it looks for the shell to display in."""

WARM = ("torch._dynamo",)
"""What making the first optimizer imports, for 1 to 2 seconds. Nothing that runs a parallel op or touches CUDA."""

_LOAD_TIMEOUT = 300.0


class Nursery:
    """Starts processes by forking from one that has everything imported."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._server = _spawn()
        self._coming: Preloaded | None = None
        self._is_warm = False

    async def start(self, fork: Fork) -> int:
        """The pid of a new process. Raises LaunchError when the imports or the fork fail."""
        return await self._fork(fork, None)

    async def _fork(self, fork: Fork, fd: int | None) -> int:
        async with self._lock:
            if not self._server.is_loaded:
                await self._load()
            try:
                forked = await self._server.fork(fork, fd)
            except (OSError, LaunchError):
                self._restart()
                await self._load()
                forked = await self._server.fork(fork, fd)
        if not forked.pid:
            raise LaunchError(f"the forkserver on {socket.gethostname()} could not start a worker: {forked.error}")
        return forked.pid

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

    # ------------------------------------------------------------ warming up

    async def warm(self) -> None:
        """Have a warm forkserver take the place of this one, unless that is under way or has been done."""
        if self._is_warm or self._coming is not None:
            return
        ours, theirs = socket_pair()
        spec = msgspec.msgpack.encode(Succession(os.getpid(), WARM))
        try:
            with theirs:
                pid = await self._fork(Fork("jdist.agent.starters.forkserver:succeed", spec, "", {}), theirs.fileno())
            coming = self._coming = Preloaded(ours, pid)
        except (OSError, LaunchError) as e:
            ours.close()
            print(f"jdist agent: no warm forkserver: {e}", file=sys.stderr)
            return
        try:
            await coming.load(None)  # for as long as cells stop it
        except LaunchError as e:
            coming.close()
            print(f"jdist agent: no warm forkserver: {e}", file=sys.stderr)
        else:
            await self._succeed(coming)
        finally:
            self._coming = None

    async def _succeed(self, coming: Preloaded) -> None:
        async with self._lock:
            self._server.close()
            self._server = coming
            self._is_warm = True
            coming.signal(signal.SIGCONT)  # a cell may have stopped it when it was done

    def pause(self) -> None:
        """A cell runs: what warms up waits."""
        if self._coming is not None:
            self._coming.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """No cell runs."""
        if self._coming is not None:
            self._coming.signal(signal.SIGCONT)

    def close(self) -> None:
        """End the forkserver; its children live on."""
        self._server.close()
        if self._coming is not None:
            self._coming.close()


def _spawn() -> Preloaded:
    return Preloaded.spawn("server", preload(), preload_environment())


def preload() -> list[str]:
    """The modules that a worker needs, of those that are here."""
    return [*PRELOAD, *(name for name in IF_INSTALLED if importlib.util.find_spec(name.partition(".")[0]))]


def preload_environment() -> dict[str, str]:
    """For a process that imports them."""
    env = dict(os.environ)
    env.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # ipykernel's, before the import
    env.setdefault("OMP_NUM_THREADS", "1")  # a forkserver with a thread pool would fork broken children
    return env
