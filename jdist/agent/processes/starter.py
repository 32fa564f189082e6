"""Starters of a node's processes, and prewarming: what the next workers need is imported while the node is idle.

Never while a cell runs: what is under way then is suspended, and goes on when the node is idle again. A forkserver is
warmed up by another one. It is forked from the first, imports what the first steps of a training import lazily, and
then takes the first one's place; so no start waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar

import msgspec

from jdist.agent.processes.forkserver import ProcessReply, ProcessRequest
from jdist.core.errors import LaunchError

_log = logging.getLogger("jdist.agent")

CreateTask = Callable[[Coroutine[Any, Any, None]], object]  # Runs a coroutine as a task until the agent ends.

IDLE = 2.0  # Seconds without a cell after which a node counts as idle.
_FORK_TIMEOUT = 30.0
_LOAD_TIMEOUT = 300.0
_WORKER = "jdist.worker.main:main"

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
)
# Imported as well where installed. Not the inline backend: its own import looks for the shell to display in.
_IF_INSTALLED = ("matplotlib.figure", "matplotlib.backends.backend_agg")
PRELOAD_ENVIRONMENT = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # ipykernel's, before the import
    "OMP_NUM_THREADS": "1",  # a forkserver with a thread pool would fork broken children
    "PYTHONHASHSEED": "0",  # sets of strings have one order on all ranks, so that equal ones have equal pickles
}
"""Variables that must be set before Python starts or the imports begin, unless the user has set them."""
# Imported by the first optimizer, for 1 to 2 seconds. Nothing here may run a parallel op or touch CUDA.
_WARM = ("torch._dynamo",)


def python_command(module: str, *arguments: str) -> list[str]:
    """Return a command line that calls ``main()`` of a module of jdist, which finds ``arguments`` in ``sys.argv``.

    As with ``-P``, the working directory is not on ``sys.path``, so that a user's ``queue.py`` is not Python's. But
    that flag would also apply to ranks, and to the interpreters that they start, unlike in a kernel.
    """
    start = f"import sys; sys.path[:] = filter(None, sys.path); from {module} import main; main()"
    return [sys.executable, "-c", start, *arguments]


def preloaded_modules() -> list[str]:
    """Names of the modules that are imported ahead for every worker, as far as they are installed."""
    return [*_PRELOAD, *(name for name in _IF_INSTALLED if importlib.util.find_spec(name.partition(".")[0]))]


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
        self._starter.resume()
        if self.is_enabled:
            self._create_task(self._starter.warm())

    def stop(self) -> None:
        """Begin nothing from now on until a rank's cell has ended."""
        if self._timer is not None:
            self._timer.cancel()


class Starter(ABC):
    """Starts a node's processes: by forking (`ForkStarter`), or as fresh interpreters (`SpawnStarter`).

    One process imports ahead what the next workers need. Only while it imports, it is suspended and continued.
    """

    _ahead_kind: ClassVar[str]  # What is imported ahead, for the log.

    def __init__(self) -> None:
        self._ahead: PreloadedProcess | None = None

    @abstractmethod
    async def start(self, request: ProcessRequest) -> int:
        """Return the new process's pid. Raises LaunchError."""

    @abstractmethod
    async def _begin_ahead(self) -> PreloadedProcess:
        """Start the process that imports ahead. Raises OSError, LaunchError."""

    async def _take_over(self, ahead: PreloadedProcess) -> None:
        """Use the process, which has imported everything."""
        ahead.signal(signal.SIGCONT)  # a cell may have stopped it when it was done

    async def warm(self) -> None:
        """Import ahead what the next workers need. Called when the node is idle, also when nothing is left to do."""
        if self._ahead is not None:
            return
        try:
            ahead = self._ahead = await self._begin_ahead()
            await ahead.load(None)  # for as long as cells stop it
        except (OSError, LaunchError) as e:
            self._ahead = None
            _log.warning("no warm %s: %s", self._ahead_kind, e)
        else:
            await self._take_over(ahead)

    def pause(self) -> None:
        """Suspend what `warm` has begun, because a cell starts."""
        self._signal_importing(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue what `warm` has begun, because the node is idle."""
        self._signal_importing(signal.SIGCONT)

    def _signal_importing(self, number: signal.Signals) -> None:
        if self._ahead is not None and not self._ahead.is_loaded:
            self._ahead.signal(number)

    def close(self) -> None:
        """End the processes that are no workers."""
        if self._ahead is not None:
            self._ahead.close()


class PreloadedProcess:
    """A process that imports and then waits, to be forked or to become a worker itself; see processes/forkserver."""

    def __init__(self, ours: socket.socket, pid: int):
        self.is_loaded = False
        self._pidfd = os.pidfd_open(pid)
        self._socket = ours
        self._socket.setblocking(False)

    @classmethod
    def spawn(cls, role: str, *more: str) -> PreloadedProcess:
        """A fresh interpreter as a "server" (forks on request) or a "spare" (becomes the one worker that is asked for).

        It imports what a worker needs, as far as it is installed, and ``more``. Its standard error is this process's.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = python_command("jdist.agent.processes.forkserver", role)
        command += [str(theirs.fileno()), str(os.getpid()), *preloaded_modules(), *more]
        env = {**PRELOAD_ENVIRONMENT, **os.environ}
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)
        process.returncode = 0  # the agent's reaper waits for it, not Popen
        return cls(ours, process.pid)

    async def load(self, timeout: float | None) -> None:
        """Wait for the imports; None: as long as the process lives. Raises LaunchError and ends it when they fail."""
        try:
            done = await self._reply(timeout, "import torch")
            if done.error:
                raise LaunchError(f"{socket.gethostname()}: a worker's imports failed:\n{done.error}")
        except LaunchError:
            self.close()
            raise
        self.is_loaded = True

    async def start(self, request: ProcessRequest, fd: int | None = None) -> ProcessReply:
        """Start a worker (a spare: become it), which gets ``fd`` as well. Raises LaunchError, OSError."""
        socket.send_fds(self._socket, [msgspec.msgpack.encode(request)], [] if fd is None else [fd])
        return await self._reply(_FORK_TIMEOUT, "start a worker")

    async def _reply(self, timeout: float | None, doing: str) -> ProcessReply:
        host = socket.gethostname()
        try:
            async with asyncio.timeout(timeout):
                data = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20)
        except TimeoutError:
            raise LaunchError(f"the forkserver on {host} did not {doing} within {timeout:.0f} s") from None
        except OSError:
            data = b""
        if not data:
            raise LaunchError(f"the forkserver on {host} ended before it could {doing}")
        return msgspec.msgpack.decode(data, type=ProcessReply)

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


class ForkStarter(Starter):
    """Starts processes by forking from one that has everything imported, and that a warm one replaces."""

    _ahead_kind = "forkserver"

    def __init__(self) -> None:
        super().__init__()
        self._lock = asyncio.Lock()
        self._server = PreloadedProcess.spawn("server")

    async def start(self, request: ProcessRequest, fd: int | None = None) -> int:
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
        self._server = PreloadedProcess.spawn("server")

    async def _begin_ahead(self) -> PreloadedProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = ProcessRequest("jdist.agent.processes.forkserver:succeed", msgspec.msgpack.encode(_WARM), "", {})
        try:
            with theirs:
                return PreloadedProcess(ours, await self.start(request, theirs.fileno()))
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
                python_command("jdist.agent.processes.forkserver", "alone", request.entry),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**PRELOAD_ENVIRONMENT, **os.environ, **request.env},
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
        return PreloadedProcess.spawn("spare", *_WARM)
