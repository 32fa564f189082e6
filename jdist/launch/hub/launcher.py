"""Hub: nodes are named servers of the same user: processes, batch jobs, pods or whatever the Hub's spawner starts.

In each server, a kernel starts the agent and is shut down. The agent ends with the cluster or with its server.
"""

import asyncio
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from jdist.core.errors import LaunchError, UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Settings
from jdist.launch.base import LaunchPlan
from jdist.launch.form import LauncherForm, LauncherOption
from jdist.launch.hub.servers import HubAccess, HubServers, ServerAddress, run_code
from jdist.launch.node_launch import NodeLaunch, NodeLauncher

_NEEDED = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_USER")
_TOUCH = 300.0  # Seconds between activity reports: many Hubs stop servers that were idle for an hour.
_AGENT = """\
import os
os.environ.update({env!r})
from jdist.client.lifecycle.start import join_here
join_here({line!r}, node_rank={node_rank}, fork={fork})
"""


class HubOptions(Struct, frozen=True):
    """Options after ``--``."""

    choices: dict[str, Any] = {}  # Options for the Hub's spawner, as its own options page would send them.
    kernel: str = ""  # Kernel whose Python runs the agent; empty: the servers' default.
    url: str = ""
    token_file: str = ""


class HubNode(NodeLaunch):
    """A node on its server."""

    def __init__(self, cluster: str, rank: int):
        super().__init__(server_name(cluster, rank), "waiting for the Hub")
        self.rank = rank
        self.is_mine = False  # Whether this launcher requested the server.


class HubLauncher(NodeLauncher[HubNode]):
    """Requests all servers at once."""

    scheme = "hub"
    form = LauncherForm(
        options=(LauncherOption("--kernel", "Kernel", "python3", "The environment of the nodes"),),
        arguments="choices of the Hub's form for a server, such as profile=gpu",
    )

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._options = parse_options(plan.settings.launcher_args)
        self._others: set[str] = set()  # Names of servers that existed before.
        self._touching: asyncio.Task[None] | None = None

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """Check that this is a server of a Hub; one node unless the user says otherwise."""
        read_access(parse_options(settings.launcher_args), os.environ)
        return super().complete(settings)

    def _servers(self) -> HubServers:
        return HubServers(read_access(self._options, os.environ))

    def make_node(self, node_rank: int) -> HubNode:
        return HubNode(self.plan.settings.name, node_rank)

    async def bring(self, node: HubNode, join_line: asyncio.Future[str]) -> None:
        """Start server, kernel and agent."""
        servers, cluster = self._servers(), self.plan.settings.name

        def show_stage(text: str) -> None:
            node.stage = text or node.stage

        taken = await servers.running(stopped=bool(self.plan.first))
        if self.plan.first:  # nodes that have left may have made room for a number whose server is still there
            names = (server_name(cluster, n) for n in itertools.count(node.rank))
            node.name = next(name for name in names if name not in taken)
        elif node.name in taken:
            self._others.add(node.name)
            raise LaunchError(
                f"a server called {node.name} is already running, for another cluster {cluster} of "
                "yours or left over from one: start with another --name, or stop it on the Hub's page /hub/home"
            )
        node.is_mine = True
        address = await servers.spawn(node.name, self._options.choices, show_stage)
        show_stage("waiting for the controller")
        line = await asyncio.shield(join_line)
        show_stage("starting its agent")
        await self._start_agent(address, node.rank, line)
        show_stage("has joined")

    async def _start_agent(self, server: ServerAddress, rank: int, line: str) -> None:
        settings = self.plan.settings
        code = _AGENT.format(env=dict(settings.env), line=line, node_rank=rank, fork=settings.fork)
        await run_code(server, code, self._options.kernel)

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Start another agent on the node's server, or on a new server if that is gone."""
        servers, name = self._servers(), server_name(self.plan.settings.name, node_rank)
        node = self.nodes.setdefault(node_rank, self.make_node(node_rank))
        node.is_mine = True
        if (await servers.running()).get(name, {}).get("ready"):
            address = await servers.address(name)
        else:
            await servers.remove(name)
            address = await servers.spawn(name, self._options.choices, lambda _: None)
        await self._start_agent(address, node_rank, join_line)
        node.failure = ""
        return True

    async def release(self) -> None:
        """Start to report activity for the servers."""
        if self._touching is None:
            self._touching = asyncio.get_running_loop().create_task(self._touch())

    async def _touch(self) -> None:
        """Report activity while this process lives, so that the Hub does not stop the nodes' servers as idle."""
        while True:
            await asyncio.sleep(_TOUCH)
            servers = self._servers()
            for node in [n for n in self.nodes.values() if not n.failure]:
                try:
                    await servers.touch(node.name)
                except LaunchError as e:  # another may still be there
                    node.stage = str(e)

    async def end(self) -> None:
        """Stop and remove the servers that this launcher requested."""
        if self._touching is not None:
            self._touching.cancel()
            await asyncio.wait([self._touching])
        await super().end()
        mine = [node for node in self.nodes.values() if node.is_mine]
        await self._remove([node.name for node in mine])
        for node in mine:
            node.is_mine = False

    async def remove_leftovers(self) -> None:
        """Stop and remove the cluster's servers, whichever client requested them, but none that existed before."""
        cluster = self.plan.settings.name
        try:
            found = await self._servers().running(stopped=True)
        except UsageError as e:
            raise LaunchError(f"servers jdist-{cluster}-… are still there; stop them on the Hub's page ({e})") from None
        own = re.compile(rf"jdist-{re.escape(cluster)}-\d+")
        await self._remove([name for name in found if own.fullmatch(name) and name not in self._others])

    async def _remove(self, names: list[str]) -> None:
        if not names:
            return
        servers = self._servers()
        ends = await asyncio.gather(*(servers.remove(name) for name in names), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end


def server_name(cluster: str, node_rank: int) -> str:
    """Name under which any client of the cluster finds the server."""
    return f"jdist-{cluster}-{node_rank}"


def read_access(options: HubOptions, environ: Mapping[str, str]) -> HubAccess:
    """How to reach the Hub, from the server's environment and the user's options. Raises UsageError."""
    given = {name: environ.get(name, "") for name in _NEEDED}
    if options.token_file:
        try:
            given["JUPYTERHUB_API_TOKEN"] = Path(options.token_file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"--token-file {options.token_file} cannot be read: {e}") from None
    if missing := ", ".join(name for name, value in given.items() if not value):
        raise UsageError(f"--launcher hub is for notebooks on a JupyterHub; this kernel's environment lacks {missing}")
    url, token, user = given.values()
    return HubAccess(url.rstrip("/"), user, token, _public(options, environ))


def _public(options: HubOptions, environ: Mapping[str, str]) -> str:
    """Address of the Hub's proxy. Never guessed, since a token is sent there."""
    if options.url:
        return options.url
    own = urlsplit(environ.get("JUPYTERHUB_PUBLIC_URL", ""))  # of this server, where the Hub was told its own
    if own.netloc:
        return f"{own.scheme}://{own.netloc}"
    host, port = environ.get("PROXY_PUBLIC_SERVICE_HOST"), environ.get("PROXY_PUBLIC_SERVICE_PORT")
    return f"http://{host}:{port}" if host and port else ""  # the Hub's Helm chart for Kubernetes


def parse_options(words: Sequence[str]) -> HubOptions:
    """Parse the options: ``profile=gpu`` is a string, ``cpu:=4`` any other JSON value. Raises UsageError."""
    parser = ArgumentParser("--launcher hub --")
    parser.add_argument("--kernel", default="", metavar="NAME")
    parser.add_argument("--url", default="", metavar="https://HUB")
    parser.add_argument("--token-file", default="", metavar="FILE")
    parser.add_argument("choices", nargs="*", default=[], metavar="OPTION=VALUE")
    found = parser.parse_intermixed_args(list(words))
    if found.url and urlsplit(found.url).scheme not in ("http", "https"):
        parser.error(f"--url {found.url!r}: write https://HUB")
    return HubOptions(dict(_choice(parser, w) for w in found.choices), found.kernel, found.url, found.token_file)


def _choice(parser: ArgumentParser, word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals or not name.rstrip(":"):
        parser.error(f"{word!r}: write OPTION=VALUE, as in profile=gpu")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except ValueError:
        parser.error(f"{word!r}: {value!r} is no JSON")
