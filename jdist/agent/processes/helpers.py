"""Run helper processes that are no workers, and dump the stacks of workers.

Each helper reports with one datagram. The rendezvous store is one of them. An agent keeps at most one store, which ends
with the agent or when another store takes its place. A store that ends by itself is replaced for the next generation,
since a world that is formed does not need it at once.

A stack dump shows where a process is whose Python cannot run because C code holds the interpreter's lock. faulthandler
needs no lock: on a signal, the worker's main thread writes its stack to a file, which the agent reads.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from jdist.agent.node import NodeContext
from jdist.agent.processes.forkserver import ProcessRequest
from jdist.agent.processes.starter import Starter
from jdist.core.errors import LaunchError
from jdist.core.messages.membership import StartStore, StoreDown, StoreUp
from jdist.core.settings import StoreReport, StoreSpec
from jdist.wire.processes import on_exit

_log = logging.getLogger("jdist.agent")

_STORE_TIMEOUT = 60.0
_numbers = itertools.count()  # One that is given up may still run when the next is started.


async def start_reporter(
    starter: Starter, directory: Path, name: str, entry: str, spec: Callable[[str], Struct], timeout: float
) -> tuple[int, bytes]:
    """Start ``entry`` with the spec for a report's path; (pid, report).

    Raises LaunchError, with what it wrote last if it ends without a report, and TimeoutError ``timeout`` seconds after
    its start.
    """
    path, log = directory / f"{name}-report-{next(_numbers)}", directory / f"{name}.log"
    path.unlink(missing_ok=True)
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.bind(str(path))
        reports.setblocking(False)
        loop.add_reader(reports, is_over.set)
        try:
            pid = await starter.start(ProcessRequest(entry, msgspec.json.encode(spec(str(path))), str(log), {}))
            on_exit(pid, is_over.set)
            async with asyncio.timeout(timeout):
                await is_over.wait()
            return pid, reports.recv(1 << 16)
        except BlockingIOError:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise LaunchError(f"its process ended without a report; {' '.join(last)}") from None
        finally:
            loop.remove_reader(reports)
            path.unlink(missing_ok=True)


class StoreSupervisor:
    """Keeps this node's store running."""

    def __init__(self, node: NodeContext):
        self.address: tuple[str, int] | None = None  # Where it listens; None while none runs.
        self._node = node
        self._pid = 0

    async def start(self, start: StartStore, host: str, node: str) -> None:
        """Start one at ``host`` in place of the present one; ``node`` names this node to the user."""
        self.end()
        entry, spec = "jdist.worker.groups.store:main", functools.partial(StoreSpec, host, start.port)
        starter, directory = self._node.starter, self._node.directory
        try:
            pid, data = await start_reporter(starter, directory, "store", entry, spec, _STORE_TIMEOUT)
            report = msgspec.json.decode(data, type=StoreReport)
            at = f"{host}:{start.port or 'a free port'}"
            reason = f"the rendezvous store cannot listen on {at}: {report.error}" if report.error else ""
        except TimeoutError:
            reason = f"the rendezvous store on {host} did not start within {_STORE_TIMEOUT:.0f} s"
        except Exception as e:
            if not isinstance(e, LaunchError | OSError):
                _log.exception("the rendezvous store could not be started")
            reason = str(e) or repr(e)
        if reason:
            self._node.send(StoreDown(f"{node}: {reason}"))
            return
        self._pid, self.address = pid, (host, report.port)
        on_exit(pid, functools.partial(self._handle_exit, pid, start, host, node))
        self._node.send(StoreUp(host, report.port))

    def end(self) -> None:
        """End it; its end is not reported."""
        pid, self._pid = self._pid, 0
        self.address = None
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _handle_exit(self, pid: int, start: StartStore, host: str, node: str) -> None:
        if pid == self._pid:
            self._pid, self.address = 0, None
            _log.warning("the rendezvous store has ended; starting another")
            self._node.create_task(self.start(start, host, node))


SIGNAL = signal.SIGRTMAX - 4  # Neither Python, nor torch, nor the debugger uses it.
_ARRIVAL = 0.3  # Seconds for the stack to be written.
_STEP = 0.01
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_CELL = re.compile(r"/ipykernel_\d+/\d+\.py$")  # The files under which ipykernel compiles cells.


async def read_place(path: Path, ask: Callable[[], None]) -> str:
    """Have the process write its stack to ``path``, by ``ask``; where it is, in words, "" if it did not write it."""
    deadline = asyncio.get_running_loop().time() + _ARRIVAL
    text, before = "", None
    with contextlib.suppress(OSError):  # the process may end meanwhile, and its files with it
        _empty(path)
        ask()
        while (not text or text != before) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_STEP)  # a change of the file triggers no event here
            before, text = text, _read(path)
    return describe_place(text)


def _empty(path: Path) -> None:
    path.write_text("")


def _read(path: Path) -> str:
    return path.read_text(errors="replace")


def describe_place(dump: str) -> str:
    """``cell line 3``, or ``f (train.py, line 5)`` where no cell is on the stack; "" for an empty dump."""
    frames = _FRAME.findall(dump)
    line = next((line for file, line, _ in frames if _CELL.search(file)), "")
    if line:
        return f"cell line {line}"
    return next((f"{name} ({file.rpartition('/')[2]}, line {line})" for file, line, name in frames), "")
