"""Routes: the server's REST interface for browsers, each for authenticated and authorized users. All lie under
``{base_url}jdist/``.

::

    GET    clusters                        read      all clusters, without their ranks
    POST   clusters                        write     start one: {"nproc_per_node": 2, …}; 202, it goes on
    GET    clusters/NAME                   read      all that is known of one
    DELETE clusters/NAME                   write     stop it; cancel its start; forget a start that failed
    GET    clusters/NAME/attach            read      the lines of a notebook's cell that attaches to it
    POST   clusters/NAME/interrupt         execute   {"ranks": "0-1"} or nothing: all
    POST   clusters/NAME/restart           execute   {"ranks": "0-1"} or nothing: all
    POST   clusters/NAME/revive            execute   start its controller again, which has died
    GET    clusters/NAME/trace             read      ?run=N (the last one): its calls of torch.distributed, for drawing
    GET    clusters/NAME/ranks/R/logs      read      ?lines=200
    GET    clusters/NAME/ranks/R/stack     read      the stack of its main thread
    GET    clusters/NAME/ranks/R/console   read      how a terminal on its node, or of this server, is attached to it
    GET    launch                          read      launchers, limits and defaults of a start

An error is ``{"message": …, "reason": …}``: 400 cannot be done as asked, 404 no such cluster, 502 it does not answer or
could not be started, 504 timed out. 202: it is under way, and events report its result.
"""

import importlib.util
import os
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import Any

from tornado import web

from jdist.client.attachment import Ranks
from jdist.client.cluster import AsyncCluster
from jdist.client.trace.columns import columns
from jdist.launch.base import ENTRY_POINTS
from jdist.server.handler import ANSWER_TIMEOUT, RESULT_TIMEOUT, Handler, executes, permitted

_MOST_LINES = 2000


class ClustersHandler(Handler):
    """All clusters, and the start of another one."""

    @permitted
    async def get(self) -> None:
        self.send({"clusters": await self.cross(self.clusters.list(), ANSWER_TIMEOUT)})

    @permitted
    async def post(self) -> None:
        name = await self.cross(self.clusters.start(self.body()))
        self.send({"name": name, "state": "starting"}, 202)


class ClusterHandler(Handler):
    """One cluster."""

    @permitted
    async def get(self, name: str) -> None:
        found = await self.cross(self.clusters.detail(name), ANSWER_TIMEOUT)
        if found is None:
            raise web.HTTPError(404, f"there is no cluster called {name}")
        self.send(found)

    @permitted
    async def delete(self, name: str) -> None:
        self.check(name)
        self.send_done(await self.cross(self.clusters.stop(name, ANSWER_TIMEOUT)))


class AttachHandler(Handler):
    """The lines of a notebook's cell that attaches to the cluster."""

    @permitted
    async def get(self, name: str) -> None:
        self.check(name)
        self.send({"code": f"%load_ext jdist\n%dist attach {name}"})


class ReviveHandler(Handler):
    """Starts a controller that has died again."""

    @executes
    async def post(self, name: str) -> None:
        self.check(name)
        await self.cross(self.clusters.revive(name))
        self.send_done(is_done=True)


class LaunchHandler(Handler):
    """What a start may be asked for: launchers, limits and defaults."""

    @permitted
    async def get(self) -> None:
        policy = self.clusters.policy
        installed = sorted({point.name for point in entry_points(group=ENTRY_POINTS)})
        self.send(
            {
                "launchers": policy.launchers(installed),
                "max_ranks": policy.max_ranks,
                "ranks_here": await self.cross(self.clusters.ranks_here(), ANSWER_TIMEOUT),
                "defaults": policy.default_args,
            }
        )


class InterruptHandler(Handler):
    """Interrupts what runs."""

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

    @executes
    async def post(self, name: str) -> None:
        await self._apply(name, AsyncCluster.restart)


class TraceHandler(Handler):
    """A run's calls of torch.distributed; ``run`` 0 is the last one."""

    @permitted
    async def get(self, name: str) -> None:
        run = self.number("run", "0", 0, 10**9 - 1)
        found = await self.ask(name, lambda cluster: cluster.trace(run), "the ranks", RESULT_TIMEOUT)
        self.send(columns(found.report, name))


class LogsHandler(Handler):
    """The last lines of a rank's log."""

    @permitted
    async def get(self, name: str, rank: str) -> None:
        lines = self.number("lines", "200", 1, _MOST_LINES)
        found = await self.ask(name, lambda cluster: cluster.logs(int(rank), lines), f"rank {rank}'s node")
        self.send({"text": found.text, "path": found.path})


class StackHandler(Handler):
    """The stack of a rank's main thread."""

    @permitted
    async def get(self, name: str, rank: str) -> None:
        self.send({"text": await self.ask(name, lambda cluster: cluster.stack(int(rank)), f"rank {rank}")})


class ConsoleHandler(Handler):
    """How a terminal is attached to a rank."""

    @permitted
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


_NAME = r"([^/]+)"
_RANK = rf"{_NAME}/ranks/([0-9]{{1,9}})"

ROUTES: list[tuple[str, Any]] = [
    (r"jdist/clusters", ClustersHandler),
    (rf"jdist/clusters/{_NAME}", ClusterHandler),
    (rf"jdist/clusters/{_NAME}/attach", AttachHandler),
    (rf"jdist/clusters/{_NAME}/interrupt", InterruptHandler),
    (rf"jdist/clusters/{_NAME}/restart", RestartHandler),
    (rf"jdist/clusters/{_NAME}/revive", ReviveHandler),
    (rf"jdist/clusters/{_NAME}/trace", TraceHandler),
    (rf"jdist/clusters/{_RANK}/logs", LogsHandler),
    (rf"jdist/clusters/{_RANK}/stack", StackHandler),
    (rf"jdist/clusters/{_RANK}/console", ConsoleHandler),
    (r"jdist/launch", LaunchHandler),
]
