"""Routes: what a browser may ask, each for who is logged in and may do it. All lie under ``{base_url}jdist/``.

::

    GET    clusters                        read      all clusters, without their ranks
    POST   clusters                        write     start one: {"nproc_per_node": 2, …}; 202, it goes on
    GET    clusters/NAME                   read      all that is known of one
    DELETE clusters/NAME                   write     stop it; give its start up; forget a start that failed
    GET    clusters/NAME/attach            read      what to type in a notebook to use it
    POST   clusters/NAME/interrupt         execute   {"ranks": "0-1"} or nothing: all
    POST   clusters/NAME/restart           execute   {"ranks": "0-1"} or nothing: all
    POST   clusters/NAME/revive            execute   start a controller that has died again
    GET    clusters/NAME/trace             read      ?run=N (the last one): its calls of torch.distributed, for drawing
    GET    clusters/NAME/ranks/R/logs      read      ?lines=200
    GET    clusters/NAME/ranks/R/stack     read      where its main thread is
    GET    clusters/NAME/ranks/R/console   read      how a terminal on its node, or of this server, is attached to it
    GET    launch                          read      launchers, limits and defaults of a start

An error is ``{"message": …, "reason": …}``: 400 cannot be done as asked, 404 no such cluster, 502 it does not answer or
could not be started, 504 too late. 202 says that something is under way; events tell what becomes of it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import entry_points
from typing import Any, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web

from jdist.client.attachment import Ranks
from jdist.client.cluster import AsyncCluster
from jdist.client.trace.columns import columns
from jdist.core.errors import JdistError, UsageError
from jdist.launch.base import ENTRY_POINTS
from jdist.server.cluster_list import Roster
from jdist.server.consoles import command_here
from jdist.server.crossing import cross
from jdist.server.snapshots import safe

T = TypeVar("T")

RESOURCE = "jdist"
"""What an authorizer is asked about; also the extension's name."""
_ANSWER = 10.0
"""Seconds for an answer; what takes longer goes on, and is answered with 202."""
_SLOWER = 40.0
"""Seconds for what has to be over before it can be answered."""
_LINES = 2000
"""Lines of a log at the most."""
_NAME = r"([^/]+)"
_OF_RANK = rf"jdist/clusters/{_NAME}/ranks/([0-9]{{1,9}})"


F = TypeVar("F", bound=Callable[..., Any])


def _executing(method: F) -> F:
    """For whom the authorizer allows to act on what runs."""
    decorate: Callable[[F], F] = authorized(action="execute")
    return decorate(method)


class _Handler(ExtensionHandlerMixin, APIHandler):
    auth_resource = RESOURCE

    @property
    def _roster(self) -> Roster:
        try:
            roster: Roster = self.settings[RESOURCE].roster
        except UsageError as e:
            raise web.HTTPError(503, str(e)) from None
        return roster

    async def _cross(self, work: Coroutine[Any, Any, T], within: float = _SLOWER) -> T:
        """The result; errors as HTTP's."""
        try:
            return await cross(work, within)
        except TimeoutError:
            raise web.HTTPError(504, f"no answer within {within:.0f} s") from None
        except (JdistError, OSError) as e:
            status = 400 if isinstance(e, UsageError) else 502
            # tornado formats the message with its arguments: a % of the text's own stays as it is
            raise web.HTTPError(status, "%s", safe(str(e)), reason=type(e).__name__) from None

    async def _act(self, name: str, what: Callable[[AsyncCluster], Awaitable[T]]) -> T | None:
        """Do something with the cluster called ``name``; None if it goes on."""
        await self._check(name)
        return await self._cross(self._roster.act(name, what, _ANSWER))

    async def _check(self, name: str) -> None:
        if self._roster.picture(name) is None:
            raise web.HTTPError(404, f"there is no cluster called {name}")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = (kwargs.get("exc_info") or (None, None))[1]
        if not isinstance(error, web.HTTPError) or not error.log_message:
            super().write_error(status_code, **kwargs)
            return
        message = error.log_message % error.args if error.args else error.log_message
        self.finish(json.dumps({"message": message, "reason": error.reason}))

    def _body(self) -> dict[str, Any]:
        body = self.get_json_body() or {}
        if not isinstance(body, dict):
            raise web.HTTPError(400, "the request's body is a JSON object, or empty")
        return body

    def _ranks(self) -> Ranks:
        """Of the body: as a user writes them, a list of numbers, or None for all."""
        found = self._body().get("ranks")
        if found is None or isinstance(found, str):
            return found
        if isinstance(found, list) and found and all(type(each) is int for each in found):
            return found
        raise web.HTTPError(400, 'ranks: "0-1", or a list of numbers; all if it is left out')

    def _done(self, is_done: bool) -> None:
        self.set_status(200 if is_done else 202)
        self.finish(json.dumps({"state": "done" if is_done else "under way"}))


class _Looking(_Handler):
    """Looking is no activity: a panel that is open keeps no server from being culled."""

    _track_activity = False


class ClustersHandler(_Handler):
    """All clusters."""

    def update_api_activity(self) -> None:
        """Starting one is somebody's doing; looking is not."""
        if self.request.method != "GET":
            super().update_api_activity()

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(json.dumps({"clusters": await self._cross(self._roster.list(), _ANSWER)}))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        name = await self._cross(self._roster.start(self._body()))
        self.set_status(202)
        self.finish(json.dumps({"name": name, "state": "starting"}))


class ClusterHandler(_Handler):
    """One cluster."""

    def update_api_activity(self) -> None:
        """Stopping one is somebody's doing; looking is not."""
        if self.request.method != "GET":
            super().update_api_activity()

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        found = await self._cross(self._roster.detail(name), _ANSWER)
        if found is None:
            raise web.HTTPError(404, f"there is no cluster called {name}")
        self.finish(json.dumps(found))

    @web.authenticated
    @authorized
    async def delete(self, name: str) -> None:
        await self._check(name)
        is_done = await self._cross(self._roster.stop(name, _ANSWER))
        self._done(is_done)


class AttachHandler(_Looking):
    """What to type."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        await self._check(name)
        self.finish(json.dumps({"code": f"%load_ext jdist\n%dist attach {name}"}))


class InterruptHandler(_Handler):
    """Stop what runs."""

    @web.authenticated
    @_executing
    async def post(self, name: str) -> None:
        ranks = self._ranks()

        async def interrupt(cluster: AsyncCluster) -> bool:
            await cluster.interrupt(ranks)
            return True

        self._done(bool(await self._act(name, interrupt)))


class RestartHandler(_Handler):
    """Fresh processes."""

    @web.authenticated
    @_executing
    async def post(self, name: str) -> None:
        ranks = self._ranks()

        async def restart(cluster: AsyncCluster) -> bool:
            await cluster.restart(ranks)
            return True

        self._done(bool(await self._act(name, restart)))


class ReviveHandler(_Handler):
    """The controller again."""

    @web.authenticated
    @_executing
    async def post(self, name: str) -> None:
        await self._check(name)
        await self._cross(self._roster.revive(name))
        self._done(is_done=True)


class TraceHandler(_Looking):
    """What ranks called in a run."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        run = self.get_query_argument("run", "0")
        if not run.isdecimal() or len(run) > 9:
            raise web.HTTPError(400, "run: its number; 0 for the last one")
        await self._check(name)
        found = await self._cross(self._roster.act(name, lambda cluster: cluster.trace(int(run)), _SLOWER))
        if found is None:
            raise web.HTTPError(504, "the ranks did not answer")
        self.finish(json.dumps(columns(found.report, name)))


class LogsHandler(_Looking):
    """A rank's log."""

    @web.authenticated
    @authorized
    async def get(self, name: str, rank: str) -> None:
        lines = self.get_query_argument("lines", "200")
        if not lines.isdecimal() or not 0 < int(lines) <= _LINES:
            raise web.HTTPError(400, f"lines: a number from 1 to {_LINES}")
        found = await self._act(name, lambda cluster: cluster.logs(int(rank), int(lines)))
        if found is None:
            raise web.HTTPError(504, f"rank {rank}'s node did not answer")
        self.finish(json.dumps({"text": found.text, "path": found.path}))


class StackHandler(_Looking):
    """A rank's stack."""

    @web.authenticated
    @authorized
    async def get(self, name: str, rank: str) -> None:
        found = await self._act(name, lambda cluster: cluster.stack(int(rank)))
        if found is None:
            raise web.HTTPError(504, f"rank {rank} did not answer")
        self.finish(json.dumps({"text": found}))


class ConsoleHandler(_Looking):
    """A terminal on a rank."""

    @web.authenticated
    @authorized
    async def get(self, name: str, rank: str) -> None:
        found = await self._act(name, lambda cluster: cluster.console(int(rank)))
        if found is None:
            raise web.HTTPError(504, f"rank {rank}'s node did not answer")
        here, reason = command_here(found.hostname, found.connection_file)
        shown = {
            "hostname": found.hostname,
            "command": f"jupyter console --existing {found.connection_file}",
            "command_here": here,
            "reason": reason,
        }
        self.finish(json.dumps(shown))


class LaunchHandler(_Looking):
    """What a start may be asked for."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        policy = self._roster.policy
        installed = sorted({point.name for point in entry_points(group=ENTRY_POINTS)})
        shown = {
            "launchers": policy.launchers(installed),
            "max_ranks": policy.max_ranks,
            "ranks_here": await self._cross(self._roster.ranks_here(), _ANSWER),
            "defaults": policy.default_args,
        }
        self.finish(json.dumps(shown))


ROUTES = [
    (r"jdist/clusters", ClustersHandler),
    (rf"jdist/clusters/{_NAME}", ClusterHandler),
    (rf"jdist/clusters/{_NAME}/attach", AttachHandler),
    (rf"jdist/clusters/{_NAME}/interrupt", InterruptHandler),
    (rf"jdist/clusters/{_NAME}/restart", RestartHandler),
    (rf"jdist/clusters/{_NAME}/revive", ReviveHandler),
    (rf"jdist/clusters/{_NAME}/trace", TraceHandler),
    (rf"{_OF_RANK}/logs", LogsHandler),
    (rf"{_OF_RANK}/stack", StackHandler),
    (rf"{_OF_RANK}/console", ConsoleHandler),
    (r"jdist/launch", LaunchHandler),
]
