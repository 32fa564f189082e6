"""Ssh: one agent on each host that the user names, started over ssh."""

import asyncio
from collections.abc import Awaitable, Sequence

import msgspec
from msgspec import Struct

from jdist.core.errors import LaunchError, UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Host, Settings
from jdist.launch.base import Launcher, LaunchPlan
from jdist.launch.ssh.logins import SshLogins
from jdist.launch.ssh.remote import RemoteAgent, RemoteAgentSpec


class SshOptions(Struct, frozen=True):
    """Options after ``--``: defaults for hosts without their own in the hostfile, and a host to add."""

    python: str = ""
    directory: str = ""
    configuration: str = ""
    host: str = ""


class SshLauncher(Launcher):
    """Logs in to all hosts at once. A host that fails does not hold up the others."""

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._options = parse_options(plan.settings.launcher_args)
        self._logins = SshLogins(self._options.configuration)
        self._agents: dict[int, RemoteAgent] = {}  # Agents by node rank.
        self._bringing: set[asyncio.Task[None]] = set()

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

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Start with all hosts in background tasks; ``describe`` and ``failures`` report their progress."""
        line = asyncio.ensure_future(join_line)
        for node_rank in self.plan.node_ranks:
            self._bring(node_rank, self._host(node_rank), line)
        await line

    def _bring(self, node_rank: int, host: Host, line: asyncio.Future[str]) -> asyncio.Task[None]:
        agent = self._agents[node_rank] = RemoteAgent(self._wanted(node_rank, host), self._logins)
        task = asyncio.get_running_loop().create_task(agent.bring(line))
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)
        return task

    def _host(self, node_rank: int) -> Host:
        """Host of a node to launch. Raises LaunchError if the user named none."""
        hosts = self.plan.settings.hosts
        if self._options.host:
            return Host(self._options.host)
        if node_rank < len(hosts):
            return hosts[node_rank]
        raise LaunchError(f"which host is node {node_rank} to be on? Name it: add-node -- HOST")

    def _old_host(self, node_rank: int) -> Host | None:
        """Host of a node that was launched before; None if unknown."""
        hosts = self.plan.settings.hosts
        name = self.node_names[node_rank] if node_rank < len(self.node_names) else ""
        if name:
            return next((h for h in hosts if h.name == name), Host(name))
        return hosts[node_rank] if len(self.node_names) in (0, len(hosts)) else None

    def _wanted(self, node_rank: int, host: Host) -> RemoteAgentSpec:
        options, settings = self._options, self.plan.settings
        words = ["join", "--node-rank", str(node_rank), *([] if settings.fork else ["--no-fork"]), "-"]
        place = Host(host.name, host.slots, host.python or options.python, host.directory or options.directory)
        env = (*settings.env, ("JDIST_HOST", host.name))
        return RemoteAgentSpec(place, node_rank, tuple(words), env, f"{settings.name}-node{node_rank}")

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Log in to the node's host again and start another agent."""
        host = self._old_host(node_rank)
        if host is None:
            return False
        old = self._agents.pop(node_rank, None)
        if old is not None:
            await old.end()
        line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        line.set_result(join_line)
        await self._bring(node_rank, host, line)
        agent = self._agents[node_rank]
        if agent.failure:
            raise LaunchError(f"node {node_rank} ({agent.name}): {agent.failure}")
        return True

    async def release(self) -> None:
        """Close the connections. The agents are in sessions of their own and go on."""
        await asyncio.gather(*(a.release() for a in self._agents.values()))

    def failures(self) -> dict[int, str]:
        """Failures of all hosts, reported together once the outcome of every host is known."""
        if not all(a.is_settled for a in self._agents.values()):
            return {}
        return {n: f"{a.name}: {a.failure}" for n, a in self._agents.items() if a.failure}

    def describe(self) -> str:
        """Such as "ssh: a started; b connecting; c failed: Permission denied"."""
        stages = [f"{a.name} {a.stage}" + (f": {a.failure}" if a.failure else "") for a in self._agents.values()]
        return f"ssh: {'; '.join(stages)}"

    async def end(self) -> None:
        """End agents that are still there, and close all connections."""
        for task in list(self._bringing):
            task.cancel()
        if self._bringing:
            await asyncio.wait(self._bringing)
        await asyncio.gather(*(a.end() for a in self._agents.values()))


def _counts(settings: Settings) -> tuple[int, ...]:
    """Ranks on each host: its slots, or what ``--nproc-per-node`` says of it. Raises UsageError if they disagree."""
    hosts, given = settings.hosts, settings.nproc_per_node
    if not any(h.slots for h in hosts):
        return given
    each = given * len(hosts) if len(given) == 1 else given
    if not each:
        counts = {h.slots for h in hosts if h.slots}
        bare = next((h.name for h in hosts if not h.slots), None)
        if bare is not None and len(counts) > 1:
            raise UsageError(f"how many ranks are to be on {bare}? The other hosts differ: write {bare}:RANKS")
        each = (counts.pop(),) * len(hosts)
        return tuple(h.slots or n for h, n in zip(hosts, each, strict=True))
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
    found = parser.parse(words)
    return SshOptions(found.python, found.directory, found.configuration, found.host)
