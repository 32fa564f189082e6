"""Hub: nodes are named servers of the same user, which JupyterHub starts like any of its servers.

So whatever the Hub's spawner starts can be a node: a process, a batch job, a pod, a container. In each server, a kernel
starts the agent and is shut down. The agent ends with the cluster or with its server.
"""

import asyncio
import itertools
import json
import logging
import os
import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from jdist.core.errors import LaunchError, UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Settings
from jdist.launch.base import Launcher, LaunchPlan
from jdist.launch.hub.kernel import run_code
from jdist.launch.hub.servers import HubAccess, HubServers

_log = logging.getLogger("jdist.launch")

_NEEDED = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_USER")
# Seconds between two activity reports for the nodes' servers: many Hubs stop servers that were idle for an hour.
_TOUCH = 300.0
_AGENT = """\
import os
os.environ.update({env!r})
from jdist.client.lifecycle.local_processes import join_here
join_here({line!r}, node_rank={node_rank}, fork={fork})
"""


class HubOptions(Struct, frozen=True):
    """Options after ``--``."""

    choices: dict[str, Any] = {}  # Options for the Hub's spawner, as its own options page would send them.
    kernel: str = ""  # Kernel whose Python runs the agent; empty: the servers' default.
    url: str = ""
    token_file: str = ""


class HubNode(Struct):
    """A node, its server, and the progress of its launch."""

    rank: int
    server: str
    stage: str = "waiting for the Hub"
    failure: str = ""
    is_mine: bool = False  # Whether this launcher requested the server.
    task: asyncio.Task[None] | None = None


class HubLauncher(Launcher):
    """Requests all servers at once. A server that fails does not hold up the others."""

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._options = parse_options(plan.settings.launcher_args)
        self._nodes: dict[int, HubNode] = {}  # Nodes by node rank.
        self._others: set[str] = set()  # Names of servers that existed before.
        self._touching: asyncio.Task[None] | None = None

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """Check that this is a server of a Hub; one node unless the user says otherwise."""
        read_access(parse_options(settings.launcher_args), os.environ)
        return super().complete(settings)

    def _servers(self) -> HubServers:
        return HubServers(read_access(self._options, os.environ))

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Start all servers in background tasks; ``describe`` and ``failures`` report their progress."""
        line = asyncio.ensure_future(join_line)
        for rank in self.plan.node_ranks:
            self._bring(rank, line)
        await line

    def _bring(self, rank: int, line: asyncio.Future[str]) -> HubNode:
        node = self._nodes[rank] = HubNode(rank, server_name(self.plan.settings.name, rank))
        node.task = asyncio.get_running_loop().create_task(self._go(node, line))
        return node

    async def _go(self, node: HubNode, line: asyncio.Future[str]) -> None:
        """Start server, kernel and agent. On failure, sets ``failure`` instead of raising."""
        servers = self._servers()

        def show_stage(text: str) -> None:
            node.stage = text or node.stage

        try:
            taken = await servers.running(stopped=bool(self.plan.first))
            if self.plan.first:  # nodes that have left may have made room for a number whose server is still there
                node.server = next(n for n in _names(self.plan.settings.name, node.rank) if n not in taken)
            elif node.server in taken:
                self._others.add(node.server)
                raise LaunchError(
                    f"a server called {node.server} runs already, for another cluster {self.plan.settings.name} of "
                    "yours or left over from one: start with another --name, or stop it on the Hub's page /hub/home"
                )
            node.is_mine = True
            address = await servers.spawn(node.server, self._options.choices, show_stage)
            show_stage("waiting for the controller")
            code = self._agent_code(node.rank, await asyncio.shield(line))
            show_stage("starting its agent")
            await run_code(address, code, self._options.kernel)
            show_stage("has joined")
        except Exception as e:  # else the start would wait for it for ever
            node.failure = str(e) if isinstance(e, LaunchError) else repr(e)
            if not isinstance(e, LaunchError):
                _log.exception("node %d could not be started", node.rank)
            node.stage = "failed"

    def _agent_code(self, rank: int, line: str) -> str:
        settings = self.plan.settings
        return _AGENT.format(env=dict(settings.env), line=line, node_rank=rank, fork=settings.fork)

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Start another agent on the node's server, or on a new server if that is gone."""
        servers, name = self._servers(), server_name(self.plan.settings.name, node_rank)
        node = self._nodes.get(node_rank) or HubNode(node_rank, name)
        self._nodes[node_rank] = node
        node.is_mine = True
        if (await servers.running()).get(name, {}).get("ready"):
            address = await servers.address(name)
        else:
            await servers.remove(name)
            address = await servers.spawn(name, self._options.choices, lambda _: None)
        await run_code(address, self._agent_code(node_rank, join_line), self._options.kernel)
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
            for node in [n for n in self._nodes.values() if not n.failure]:
                try:
                    await servers.touch(node.server)
                except LaunchError as e:  # another may still be there
                    node.stage = str(e)

    def failures(self) -> dict[int, str]:
        """Failures of all servers, reported together once the outcome of every server is known."""
        if not all(n.failure or n.task is None or n.task.done() for n in self._nodes.values()):
            return {}
        return {n.rank: f"{n.server}: {n.failure}" for n in self._nodes.values() if n.failure}

    def describe(self) -> str:
        """For example "hub: jdist-c1-0 has joined; jdist-c1-1 0/3 nodes are available: Insufficient memory"."""
        nodes = self._nodes.values()
        return "hub: " + "; ".join(f"{n.server} {n.stage}" + (f": {n.failure}" if n.failure else "") for n in nodes)

    async def end(self) -> None:
        """Stop and remove the servers that this launcher requested."""
        tasks = [t for t in (self._touching, *(n.task for n in self._nodes.values())) if t is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        mine = [n for n in self._nodes.values() if n.is_mine]
        await self._remove([n.server for n in mine])
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


def _names(cluster: str, first: int) -> Iterator[str]:
    return (server_name(cluster, n) for n in itertools.count(first))


def read_access(options: HubOptions, environ: Mapping[str, str]) -> HubAccess:
    """How to reach the Hub, from the server's environment and the user's options. Raises UsageError."""
    needed = [n for n in _NEEDED if not (n == "JUPYTERHUB_API_TOKEN" and options.token_file)]
    missing = [n for n in needed if not environ.get(n)]
    if missing:
        raise UsageError(
            f"--launcher hub is for notebooks on a JupyterHub; this kernel's environment lacks {', '.join(missing)}"
        )
    token = environ.get("JUPYTERHUB_API_TOKEN", "")
    if options.token_file:
        try:
            token = Path(options.token_file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"--token-file {options.token_file} cannot be read: {e}") from None
    return HubAccess(
        environ["JUPYTERHUB_API_URL"].rstrip("/"), environ["JUPYTERHUB_USER"], token, _public(options, environ)
    )


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
