"""Ssh: one agent on each host that the user names, started over ssh."""

import asyncio
import secrets
import sys
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from jdist.core import __version__
from jdist.core.errors import LaunchError, UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Host, Settings, SshBootstrapSpec
from jdist.launch.base import LaunchPlan, join_words, resolved
from jdist.launch.form import LauncherForm, LauncherOption
from jdist.launch.node_launch import NodeLauncher
from jdist.launch.ssh.logins import SshLogins
from jdist.launch.ssh.remote import RemoteAgent

OLDEST_PYTHON = (3, 11)


class SshOptions(Struct, frozen=True):
    """Options after ``--``: defaults for hosts without their own in the hostfile, and a host to add."""

    python: str = ""
    directory: str = ""
    configuration: str = ""
    host: str = ""


class SshLauncher(NodeLauncher[RemoteAgent]):
    """Logs in to all hosts at once."""

    scheme = "ssh"
    form = LauncherForm(
        hosts="required",
        options=(
            LauncherOption("--python", "Python", "/opt/env/bin/python", "The interpreter on the hosts"),
            LauncherOption("--directory", "Directory", "~/project", "The working directory on the hosts"),
            LauncherOption("-F", "ssh's settings", "~/.ssh/config"),
        ),
        arguments="",
    )

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._options = parse_options(plan.settings.launcher_args)
        self._logins = SshLogins(self._options.configuration)

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """One node for each host, one rank for each slot."""
        if not settings.hosts:
            raise UsageError("--launcher ssh needs hosts: --hosts a:2,b:2 or --hostfile FILE")
        if parse_options(settings.launcher_args).host:
            raise UsageError("after -- a host is named to add it to a running cluster; for a start, in --hosts")
        n = len(settings.hosts)
        if settings.nnodes not in (0, n):
            raise UsageError(f"--nnodes {settings.nnodes}, but {n} hosts are named; leave one of the two out")
        return msgspec.structs.replace(settings, nnodes=n, nproc_per_node=_counts(settings))

    def make_node(self, node_rank: int) -> RemoteAgent:
        """The agent on the host that the user named for it. Raises LaunchError if there is none."""
        hosts = self.plan.settings.hosts
        if self.plan.host is not None or self._options.host:
            return self._agent_on(self.plan.host or Host(self._options.host), node_rank)
        if node_rank < len(hosts):
            return self._agent_on(hosts[node_rank], node_rank)
        raise LaunchError(f"which host is node {node_rank} to be on? Name it: add-node --host HOST")

    def _agent_on(self, host: Host, node_rank: int) -> RemoteAgent:
        settings, python = self.plan.settings, host.python or self._options.python
        spec = SshBootstrapSpec(
            mark=f"jdist-{secrets.token_hex(8)} ",
            python=OLDEST_PYTHON,
            jdist=__version__,
            directory=host.directory or self._options.directory,
            env={**dict(settings.env), "JDIST_HOST": host.name},
            words=tuple(join_words(node_rank, fork=settings.fork)),
            log=f"{settings.name}-node{node_rank}",
        )
        return RemoteAgent(host.name, [python] if python else [sys.executable, "python3"], spec, self._logins)

    async def bring(self, node: RemoteAgent, join_line: asyncio.Future[str]) -> None:
        await node.bring(join_line)

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Log in to the node's host again and start another agent."""
        host = self.host_of(node_rank, self.plan.settings.hosts)
        if host is None:
            return False
        if node_rank in self.nodes:
            await self.nodes.pop(node_rank).end()
        agent = self._agent_on(host, node_rank)
        await self.begin(node_rank, agent, resolved(join_line))
        if agent.failure:
            raise LaunchError(f"node {node_rank} ({agent.name}): {agent.failure}")
        return True

    async def release(self) -> None:
        """Close the connections. The agents are in sessions of their own and go on."""
        await asyncio.gather(*(agent.release() for agent in self.nodes.values()))

    async def end(self) -> None:
        """End agents that are still there, and close all connections."""
        await super().end()
        await asyncio.gather(*(agent.end() for agent in self.nodes.values()))


def _counts(settings: Settings) -> tuple[int, ...]:
    """Ranks on each host: its slots, or what ``--nproc-per-node`` says of it. Raises UsageError if they disagree."""
    hosts, given = settings.hosts, settings.nproc_per_node
    slots = {h.slots for h in hosts if h.slots}
    if not slots:
        return given
    if not given:
        bare = next((h.name for h in hosts if not h.slots), None)
        if bare is not None and len(slots) > 1:
            raise UsageError(f"how many ranks are to be on {bare}? The other hosts differ: write {bare}:RANKS")
        return tuple(h.slots or max(slots) for h in hosts)
    each = given * len(hosts) if len(given) == 1 else given
    if len(each) != len(hosts):
        raise UsageError(f"--nproc-per-node names {len(each)} nodes, but {len(hosts)} hosts are named")
    for host, n in zip(hosts, each, strict=True):
        if host.slots not in (0, n):
            raise UsageError(f"--nproc-per-node says {n} ranks on {host.name}, and {host.name} has {host.slots} slots")
    return each


def parse_options(words: Sequence[str]) -> SshOptions:
    """What the user wrote after ``--``. Raises UsageError."""
    parser = ArgumentParser("--launcher ssh --")
    parser.add_argument("--python", default="", metavar="PATH")
    parser.add_argument("--directory", default="", metavar="PATH")
    parser.add_argument("-F", dest="configuration", default="", metavar="SSH_CONFIG")
    parser.add_argument("host", nargs="?", default="", metavar="HOST")
    return SshOptions(**vars(parser.parse(words)))
