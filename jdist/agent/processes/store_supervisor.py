"""The rendezvous store's process on this node: its start, and the report of its end.

At most one is kept. It ends with the agent, or when another takes its place. One that ends by itself is replaced for
the next generation: a world that is formed does not need it at once.
"""

import contextlib
import functools
import logging
import os
import signal
from pathlib import Path

import msgspec

from jdist.agent.node.context import NodeContext
from jdist.agent.processes.exits import on_exit
from jdist.agent.processes.reports import start_reporter
from jdist.agent.starters.prewarm import Starter
from jdist.core.errors import LaunchError
from jdist.core.messages.groups import StartStore, StoreDown, StoreUp
from jdist.core.settings import StoreReport, StoreSpec

_log = logging.getLogger("jdist.agent")

_TIMEOUT = 60.0


class StoreSupervisor:
    """Keeps this node's store running."""

    def __init__(self, node: NodeContext):
        self.address: tuple[str, int] | None = None  # Where it listens; None while none runs.
        self._node = node
        self._pid = 0

    async def start(self, start: StartStore, host: str, node: str) -> None:
        """Start one at ``host`` in place of the present one; ``node`` names this node to the user."""
        self.end()
        try:
            self._pid, port = await start_store(self._node.starter, self._node.directory, host, start.port)
        except (LaunchError, OSError) as e:
            self._node.send(StoreDown(f"{node}: {e}"))
            return
        on_exit(self._pid, functools.partial(self._handle_exit, self._pid, start, host, node))
        self.address = (host, port)
        self._node.send(StoreUp(host, port))

    def end(self) -> None:
        """End it; its end is not reported."""
        pid, self._pid = self._pid, 0
        self.address = None
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _handle_exit(self, pid: int, start: StartStore, host: str, node: str) -> None:
        if pid != self._pid:
            return
        self._pid = 0
        self.address = None
        _log.warning("the rendezvous store has ended; starting another")
        self._node.create_task(self.start(start, host, node))


async def start_store(starter: Starter, directory: Path, host: str, port: int) -> tuple[int, int]:
    """(pid, port) of a store on ``host``; ``port`` 0 takes a free one. Raises LaunchError with torch's reason."""
    entry, spec = "jdist.worker.groups.store_process:main", functools.partial(StoreSpec, host, port)
    try:
        pid, data = await start_reporter(starter, directory, "store", entry, spec, _TIMEOUT)
    except TimeoutError:
        raise LaunchError(f"the rendezvous store on {host} did not start within {_TIMEOUT:.0f} s") from None
    report = msgspec.json.decode(data, type=StoreReport)
    if report.error:
        raise LaunchError(f"the rendezvous store cannot listen on {host}:{port or 'a free port'}: {report.error}")
    return pid, report.port
