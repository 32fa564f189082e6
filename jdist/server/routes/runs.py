"""Routes of runs and ranks: what acts on what runs, and what shows it."""

import importlib.util
import os
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable

from jupyter_server.auth.decorator import authorized
from tornado import web

from jdist.client.attachment import Ranks
from jdist.client.cluster import AsyncCluster
from jdist.client.trace.columns import columns
from jdist.server.routes.handler import RESULT_TIMEOUT, Handler, ReadingHandler, executes

_MOST_LINES = 2000


class InterruptHandler(Handler):
    """Interrupts what runs."""

    @web.authenticated
    @executes
    async def post(self, name: str) -> None:
        await self._apply(name, AsyncCluster.interrupt)

    async def _apply(self, name: str, change: Callable[[AsyncCluster, Ranks], Awaitable[object]]) -> None:
        """Apply ``change`` to the ranks that the body names."""
        ranks = self.ranks()

        async def apply(cluster: AsyncCluster) -> bool:
            await change(cluster, ranks)
            return True

        self.send_done(bool(await self.act(name, apply)))


class RestartHandler(InterruptHandler):
    """Replaces ranks' processes."""

    @web.authenticated
    @executes
    async def post(self, name: str) -> None:
        await self._apply(name, AsyncCluster.restart)


class TraceHandler(ReadingHandler):
    """A run's calls of torch.distributed; ``run`` 0 is the last one."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        run = self.number("run", "0", 0, 10**9 - 1)
        found = await self.ask(name, lambda cluster: cluster.trace(run), "the ranks", RESULT_TIMEOUT)
        self.send(columns(found.report, name))


class LogsHandler(ReadingHandler):
    """The last lines of a rank's log."""

    @web.authenticated
    @authorized
    async def get(self, name: str, rank: str) -> None:
        lines = self.number("lines", "200", 1, _MOST_LINES)
        found = await self.ask(name, lambda cluster: cluster.logs(int(rank), lines), f"rank {rank}'s node")
        self.send({"text": found.text, "path": found.path})


class StackHandler(ReadingHandler):
    """The stack of a rank's main thread."""

    @web.authenticated
    @authorized
    async def get(self, name: str, rank: str) -> None:
        self.send({"text": await self.ask(name, lambda cluster: cluster.stack(int(rank)), f"rank {rank}")})


class ConsoleHandler(ReadingHandler):
    """How a terminal is attached to a rank."""

    @web.authenticated
    @authorized
    async def get(self, name: str, rank: str) -> None:
        found = await self.ask(name, lambda cluster: cluster.console(int(rank)), f"rank {rank}'s node")
        here, reason = console_command(found.hostname, found.connection_file)
        command = f"jupyter console --existing {found.connection_file}"
        self.send({"hostname": found.hostname, "command": command, "command_here": here, "reason": reason})


def console_command(hostname: str, connection_file: str, program: str = "jupyter_console") -> tuple[str, str]:
    """``(command, "")`` for a terminal of this server, or ``("", why)`` if it cannot reach the rank.

    A rank's kernel listens on sockets of its node only, so its ``connection_file`` must be this machine's. The command
    names that file rather than the key in it, and this interpreter, since a terminal's shell may find another one.
    """
    if hostname != socket.gethostname() or not os.access(connection_file, os.R_OK):
        return "", f"the rank is on {hostname}, and this server on {socket.gethostname()}"
    if importlib.util.find_spec(program) is None:
        return "", "jupyter_console is not installed beside the Jupyter server: pip install jupyter-console"
    return shlex.join([sys.executable, "-m", program, "--existing", connection_file]), ""
