"""The rendezvous store's process on this node: its start, and word of its end.

At most one is kept. It ends with the agent, or when another takes its place; one that ends by itself gets a successor,
at which the next generation meets: nothing that is formed needs it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from jdist.agent.processes.kernel import Starter
from jdist.agent.starters.forkserver import Fork
from jdist.core.errors import LaunchError
from jdist.core.messages.base import Message
from jdist.core.messages.groups import StartStore, StoreDown, StoreUp
from jdist.core.specs import StoreReport, StoreSpec

_TIMEOUT = 60.0


class StoreKeeper:
    """Keeps this node's store running. ``send`` tells the controller, ``keep`` runs a coroutine."""

    def __init__(
        self,
        starter: Starter,
        directory: Path,
        send: Callable[[Message], None],
        keep: Callable[[Coroutine[Any, Any, None]], None],
    ):
        self.address: tuple[str, int] | None = None
        """Where it listens; None while there is none."""
        self._starter = starter
        self._directory = directory
        self._send = send
        self._keep = keep
        self._pid = 0

    async def start(self, start: StartStore, host: str, node: str) -> None:
        """Have one at ``host``, in place of the one there is; ``node`` is what the user calls this place."""
        self.end()
        try:
            self._pid, port = await start_store(self._starter, self._directory, host, start.port)
        except (LaunchError, OSError) as e:
            self._send(StoreDown(f"{node}: {e}"))
            return
        again = functools.partial(self.start, start, host, node)
        watch_end(self._pid, functools.partial(self._ended, self._pid, again))
        self.address = (host, port)
        self._send(StoreUp(host, port))

    def end(self) -> None:
        """End it; nobody is told."""
        pid, self._pid = self._pid, 0
        self.address = None
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ended(self, pid: int, again: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if pid != self._pid:
            return
        self._pid = 0
        self.address = None
        print("jdist agent: the rendezvous store has ended; starting another", file=sys.stderr)
        self._keep(again())


async def start_store(starter: Starter, directory: Path, host: str, port: int) -> tuple[int, int]:
    """(pid, port) of a store on ``host``; ``port`` 0 takes a free one. Raises LaunchError with torch's reason."""
    path = directory / "store-report"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.bind(str(path))
        reports.setblocking(False)
        spec = msgspec.json.encode(StoreSpec(host, port, str(path)))
        pid = await starter.start(
            Fork("jdist.worker.groups.store_process:main", spec, str(directory / "store.log"), {})
        )
        try:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(reports, 4096), _TIMEOUT)
        except TimeoutError:
            raise LaunchError(f"the rendezvous store on {host} did not start within {_TIMEOUT:.0f} s") from None
        finally:
            path.unlink(missing_ok=True)
    report = msgspec.json.decode(data, type=StoreReport)
    if report.error:
        raise LaunchError(f"the rendezvous store cannot listen on {host}:{port or 'a free port'}: {report.error}")
    return pid, report.port


def watch_end(pid: int, on_end: Callable[[], None]) -> None:
    """Call ``on_end`` once when the process has ended; on the running loop."""
    loop = asyncio.get_running_loop()
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(on_end)
        return

    def ended() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        on_end()

    loop.add_reader(watched, ended)
