"""Routes of clusters: all of them, each one, how to use it, and what a start may be asked for."""

from importlib.metadata import entry_points

from jupyter_server.auth.decorator import authorized
from tornado import web

from jdist.launch.base import ENTRY_POINTS
from jdist.server.routes.handler import ANSWER_TIMEOUT, Handler, MixedHandler, ReadingHandler, executes


class ClustersHandler(MixedHandler):
    """All clusters, and the start of another one."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.send({"clusters": await self.cross(self.clusters.list(), ANSWER_TIMEOUT)})

    @web.authenticated
    @authorized
    async def post(self) -> None:
        name = await self.cross(self.clusters.start(self.body()))
        self.send({"name": name, "state": "starting"}, 202)


class ClusterHandler(MixedHandler):
    """One cluster."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        found = await self.cross(self.clusters.detail(name), ANSWER_TIMEOUT)
        if found is None:
            raise web.HTTPError(404, f"there is no cluster called {name}")
        self.send(found)

    @web.authenticated
    @authorized
    async def delete(self, name: str) -> None:
        self.check(name)
        self.send_done(await self.cross(self.clusters.stop(name, ANSWER_TIMEOUT)))


class AttachHandler(ReadingHandler):
    """The lines of a notebook's cell that attaches to the cluster."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        self.check(name)
        self.send({"code": f"%load_ext jdist\n%dist attach {name}"})


class ReviveHandler(Handler):
    """Starts a controller that has died again."""

    @web.authenticated
    @executes
    async def post(self, name: str) -> None:
        self.check(name)
        await self.cross(self.clusters.revive(name))
        self.send_done(is_done=True)


class LaunchHandler(ReadingHandler):
    """What a start may be asked for: launchers, limits and defaults."""

    @web.authenticated
    @authorized
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
