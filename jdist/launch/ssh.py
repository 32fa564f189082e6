"""Nodes on hosts that the user names: one agent on each, started over an ssh connection of its own.

Until an agent has its join line, it ends with the connection; later, in a session of its own, it ends with its
controller. A host that cannot open a connection to the controller gets a line that leads through a tunnel
(``--tunnel``), which a process of its own carries (launch/tunnel_keeper).
"""

import asyncio
import contextlib
import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import asyncssh
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from jdist.core.errors import LaunchError, UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Host, Settings, SshBootstrapSpec
from jdist.launch.base import LauncherForm, LauncherOption, LaunchPlan, join_words, resolved
from jdist.launch.hosts import NodeLaunch, NodeLauncher
from jdist.launch.launch_program import last_words
from jdist.launch.node_end import ReachSpec
from jdist.launch.ssh_command import BootstrapReport
from jdist.launch.ssh_login import SshLogins, start_there
from jdist.launch.tunnel_keeper import KeeperSpec, start_keeper
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import LOOPBACK, connection_path

TunnelUse = Literal["auto", "always", "never"]
TUNNEL_USES: tuple[str, ...] = get_args(TunnelUse)
_REACHED = 20.0  # Seconds for a host to find out whether it reaches the controller, with the start of Python there.
_END = 5.0
_LOG_LINES = 3


class RemoteAgent(NodeLaunch):
    """Starts one agent on its host, and a keeper (launch/tunnel_keeper) if the host needs one."""

    def __init__(self, host: Host, node_rank: int, plan: LaunchPlan, options: "SshOptions", logins: SshLogins):
        super().__init__(host.name, "connecting")
        settings, python = plan.settings, host.python or options.python
        self._pythons = (python,) if python else (sys.executable, "python3")
        self._spec = SshBootstrapSpec(
            mark=f"jdist-{secrets.token_hex(8)} ",
            directory=host.directory or options.directory,
            env={**dict(settings.env), "JDIST_HOST": host.name},
            words=tuple(join_words(node_rank, fork=settings.fork)),
            log=f"{settings.name}-node{node_rank}",
            named=bool(python),
        )
        self._tunnel = options.tunnel
        self._plan = plan
        self._configuration = options.configuration
        self._logins = logins
        self._connection: asyncssh.SSHClientConnection | None = None
        self._process: asyncssh.SSHClientProcess[bytes] | None = None
        self._report = BootstrapReport()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._advice = ""  # Of use if the agent ends because it does not reach the controller.

    async def bring(self, join_line: asyncio.Future[str]) -> None:
        """Start the agent and send it its join line. Raises LaunchError."""
        try:
            self._connection = await self._logins.log_in(self.name)
            self.stage = "starting"
            process, self._report = await start_there(self._connection, self.name, self._pythons, self._spec)
            self._process = process
            self.stage = "waiting for the controller"
            line = await self._passable(await asyncio.shield(join_line), self._connection, process)
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its log says why
                process.stdin.write(line.encode() + b"\n")
        except (asyncssh.Error, OSError) as e:
            raise LaunchError(str(e) or type(e).__name__) from None
        self.stage = "started" if self._keeper is None else "started, and its login carries its connections"
        self._watching = asyncio.get_running_loop().create_task(self._watch(process))

    async def _passable(
        self, text: str, connection: asyncssh.SSHClientConnection, agent: asyncssh.SSHClientProcess[bytes]
    ) -> str:
        """The join line as the agent can use it: it may lead through a tunnel. Raises LaunchError, asyncssh.Error."""
        line = JoinLine.decode(text)
        if self._tunnel == "never":
            self._advice = f"If it does not reach the controller, leave --tunnel never out, or use --at {self.name}"
            return text
        if self._tunnel == "auto":
            self.stage = "trying to reach the controller"
            if await self._reaches(line, connection) or agent.exit_status is not None:
                return text  # an agent that has ended says why in its log
        self.stage = "opening a tunnel"
        plan = self._plan
        spec = KeeperSpec(
            self.name,
            self._pythons,
            self._configuration,
            replace(self._spec, words=("node-end",), log=""),
            str(connection_path(Path(plan.log).parent, plan.settings.name)),
            line.cluster,
            plan.settings.carried_grace,
        )
        async with self._logins.places:
            self._keeper, report = await start_keeper(spec, plan.log)
        control, data = report.ports
        carried = replace(line, hosts=(LOOPBACK,), control_port=control, data_port=data, is_carried=True)
        return carried.encode()

    async def _reaches(self, line: JoinLine, connection: asyncssh.SSHClientConnection) -> bool:
        """Whether the host reaches the controller by itself, or cannot be asked beside the agent (MaxSessions 1)."""
        spec = replace(self._spec, words=("reach",), log="")
        try:
            process, _ = await start_there(connection, self.name, self._pythons, spec)
        except asyncssh.ChannelOpenError:
            self._advice = "Its sshd allows one session: if it does not reach the controller, use -- --tunnel always"
            return True
        wanted = ReachSpec(line.cluster, line.hosts, line.data_port)
        try:
            async with asyncio.timeout(_REACHED):
                process.stdin.write(msgspec.json.encode(wanted) + b"\n")
                return await process.stdout.readline() == b"true\n"
        except (TimeoutError, BrokenPipeError):
            return False
        finally:
            process.close()

    async def _watch(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        """Record the agent's end. If only the connection ends, the agent goes on."""
        done = await process.wait()
        if done.exit_status is None and done.exit_signal is None:
            self.stage = "out of sight"
            return
        log = shlex.quote(self._report.log)
        said = await self._run(f"tail -n {_LOG_LINES} {log}; rm -f {log}")
        how = f"code {done.exit_status}" if done.exit_signal is None else f"signal {done.exit_signal[0]}"
        self.failure = f"its agent ended with {how}{f': {last_words(said)}' if said.strip() else ''}"
        if self._advice:
            self.failure += f". {self._advice}"
        self.stage = "ended"

    async def _run(self, command: str) -> str:
        """Output of a short command on the host; "" if the connection is broken."""
        if self._connection is None:
            return ""
        with contextlib.suppress(asyncssh.Error, OSError):
            async with asyncio.timeout(_END):
                return str((await self._connection.run(command, check=False)).stdout or "")
        return ""

    async def end(self) -> None:
        """End the agent if it still runs and can be reached, and close the connection."""
        if self._keeper is not None and self._keeper.poll() is None:
            self._keeper.terminate()
        if self._connection is None:
            return
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write_eof()
        if self._watching is not None and not self._watching.done():
            await self._run(f"kill {self._report.pid}")
            await asyncio.wait([self._watching], timeout=_END)
        await self.release()

    async def release(self) -> None:
        """Close the connection. An agent that has its join line goes on."""
        if self._watching is not None:
            self._watching.cancel()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.close()
        with contextlib.suppress(asyncssh.Error, OSError):
            async with asyncio.timeout(_END):
                await connection.wait_closed()


class SshOptions(Struct, frozen=True):
    """Options after ``--``: defaults for hosts without their own in the hostfile, and a host to add."""

    python: str = ""
    directory: str = ""
    configuration: str = ""
    host: str = ""
    tunnel: TunnelUse = "auto"


class SshLauncher(NodeLauncher[RemoteAgent]):
    """Logs in to all hosts at once."""

    scheme = "ssh"
    form = LauncherForm(
        hosts="required",
        options=(
            LauncherOption("--python", "Python", "/opt/env/bin/python", "The interpreter on the hosts"),
            LauncherOption("--directory", "Directory", "~/project", "The working directory on the hosts"),
            LauncherOption("-F", "ssh's settings", "~/.ssh/config"),
            LauncherOption(
                "--tunnel", "Tunnel", "auto", "auto, always or never: whether logins carry the hosts' connections back"
            ),
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
        return replace(settings, nnodes=n, nproc_per_node=_counts(settings))

    def make_node(self, node_rank: int) -> RemoteAgent:
        """The agent on the host that the user named for it. Raises LaunchError if there is none."""
        hosts = self.plan.settings.hosts
        if self.plan.host is not None or self._options.host:
            return self._agent_on(self.plan.host or Host(self._options.host), node_rank)
        if node_rank < len(hosts):
            return self._agent_on(hosts[node_rank], node_rank)
        raise LaunchError(f"which host is node {node_rank} to be on? Name it: add-node --host HOST")

    def _agent_on(self, host: Host, node_rank: int) -> RemoteAgent:
        return RemoteAgent(host, node_rank, self.plan, self._options, self._logins)

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
    parser.add_argument("--tunnel", default="auto", choices=TUNNEL_USES, metavar="|".join(TUNNEL_USES))
    parser.add_argument("host", nargs="?", default="", metavar="HOST")
    return SshOptions(**vars(parser.parse(words)))
