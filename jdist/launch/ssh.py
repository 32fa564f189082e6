"""Nodes on hosts that the user names: one agent on each, started over an ssh connection of its own.

Until an agent has its join line, it ends with the connection; later, in a session of its own, it ends with its
controller.

User, port, key, ProxyJump and the rest come from ``~/.ssh/config`` and ``/etc/ssh/ssh_config``. A host's key must be in
known_hosts; this cannot be turned off. jdist never prompts, so a password or a passphrase cannot be given.
"""

import asyncio
import contextlib
import secrets
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncssh
import msgspec
from msgspec import Struct

from jdist.core.errors import LaunchError, UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Host, Settings, SshBootstrapSpec
from jdist.launch.base import LauncherForm, LauncherOption, LaunchPlan, join_words, resolved
from jdist.launch.hosts import NodeLaunch, NodeLauncher
from jdist.launch.launch_program import last_words
from jdist.launch.ssh_command import BootstrapReport, bootstrap_command

_CONNECT = 20.0  # Seconds to connect to a host, unless the configuration says otherwise.
_LOGIN = 30.0  # Seconds to authenticate.
_ALIVE = 15.0  # Seconds of silence before a keep-alive is sent.
_CONFIGURATIONS = ("~/.ssh/config", "/etc/ssh/ssh_config")
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_AT_ONCE = 8  # Concurrent logins: sshd (MaxStartups) drops some of more than ten through one jump host.
_REPORT = 60.0  # Seconds for a login shell, Python's start and the import of jdist there.
_END = 5.0
_LOG_LINES = 3


class SshLogins:
    """Logs in to hosts. ``configuration``: a file to use instead of the user's, as with ``ssh -F``."""

    def __init__(self, configuration: str = ""):
        self._configuration = [configuration] if configuration else _present(_CONFIGURATIONS)
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def log_in(self, host: str) -> asyncssh.SSHClientConnection:
        """Connect to ``host``, written as in ``ssh HOST``. Raises LaunchError with ssh's reason and what to do."""
        user, _, name = host.rpartition("@")
        given: dict[str, Any] = {"config": self._configuration, **({"username": user} if user else {})}
        known = _KnownHosts()
        async with self._places:
            try:
                options = await asyncssh.SSHClientConnectionOptions.construct(host=name, **given)
                known.alias = options.host_key_alias
                known.files = list(options.known_hosts or known.files)
                return await asyncssh.connect(
                    name,
                    known_hosts=known.match,
                    connect_timeout=options.connect_timeout or _CONNECT,
                    login_timeout=_LOGIN,
                    keepalive_interval=options.keepalive_interval or _ALIVE,
                    **given,
                )
            except (asyncssh.Error, OSError, ValueError) as e:  # ValueError: configurations and keys that do not parse
                raise LaunchError(_explain(e, host, known)) from e


class _KnownHosts:
    """Looks up the keys that a host may present."""

    def __init__(self) -> None:
        self.files: list[Any] = list(_KNOWN_HOSTS)
        self.alias: str | None = None  # HostKeyAlias of the configuration.
        self.asked_for = ""  # The host as written in known_hosts, once it has been looked up.
        self.has_keys = False

    def match(self, host: str, _address: str, port: int | None) -> Any:
        """Called by asyncssh. As with ssh, a key is looked up by the host's name and not by its address."""
        text = "\n".join(Path(f).read_text(errors="replace") for f in _present(self.files))
        found = asyncssh.match_known_hosts(text.encode(), host, "", port)
        self.asked_for = host if port is None or host == self.alias else f"[{host}]:{port}"
        self.has_keys = any(found[:2])
        return found


def _present(paths: Any) -> list[str]:
    return [str(p) for p in (Path(p).expanduser() for p in paths) if p.is_file()]


def _explain(error: Exception, host: str, known: _KnownHosts) -> str:
    """Why there is no connection, in ssh's words, and what to do."""
    reason = str(error).rstrip(".") or type(error).__name__
    match error:
        case asyncssh.PermissionDenied():
            return (
                f"{reason}: it takes none of your keys, and jdist never types a password. Once, in a terminal: "
                f"ssh-copy-id {host} (a key with a passphrase also needs: ssh-add)"
            )
        case asyncssh.HostKeyNotVerifiable() if not known.asked_for:
            return reason  # of a jump host's
        case asyncssh.HostKeyNotVerifiable() if known.has_keys:
            return (
                f"{reason}: it is not the key in known_hosts. Either the host was installed anew or something else "
                f"answers in its place; if you know why, ssh-keygen -R '{known.asked_for}' forgets the old key"
            )
        case asyncssh.HostKeyNotVerifiable():
            return f"{reason}: it is not in known_hosts yet. Once, in a terminal, look at it and accept it: ssh {host}"
        case TimeoutError():
            return f"no answer; is it up, and is its port open from here? ssh {host} must work"
        case _:
            return f"{reason}; ssh {host} must work without being asked for anything"


class RemoteAgent(NodeLaunch):
    """Starts one agent on its host, by one of ``pythons``."""

    def __init__(self, host: str, pythons: list[str], spec: SshBootstrapSpec, logins: SshLogins):
        super().__init__(host, "connecting")
        self._pythons = pythons
        self._spec = spec
        self._logins = logins
        self._connection: asyncssh.SSHClientConnection | None = None
        self._process: asyncssh.SSHClientProcess[bytes] | None = None
        self._report = BootstrapReport()
        self._watching: asyncio.Task[None] | None = None

    async def bring(self, join_line: asyncio.Future[str]) -> None:
        """Start the agent and send it its join line. Raises LaunchError."""
        command, bootstrap = bootstrap_command(self._pythons)
        try:
            self._connection = await self._logins.log_in(self.name)
            self.stage = "starting"
            self._process = process = await self._connection.create_process(command, encoding=None)
            async with asyncio.timeout(_REPORT):
                with contextlib.suppress(OSError):  # it ended already, and says why
                    process.stdin.write(bootstrap + msgspec.json.encode(self._spec) + b"\n")
                    await process.stdin.drain()
                self._report = await _read_report(process, self._spec.mark.encode())
            if self._report.error:
                raise LaunchError(self._report.error)
            self.stage = "waiting for the controller"
            line = await asyncio.shield(join_line)
            process.stdin.write(line.encode() + b"\n")
        except TimeoutError:
            raise LaunchError(f"Python did not start within {_REPORT:.0f} s; try ssh {self.name} python3") from None
        except (asyncssh.Error, OSError) as e:
            raise LaunchError(str(e) or type(e).__name__) from None
        self.stage = "started"
        self._watching = asyncio.get_running_loop().create_task(self._watch(process))

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


async def _read_report(process: asyncssh.SSHClientProcess[bytes], mark: bytes) -> BootstrapReport:
    """Read the line with the mark, skipping a login's output. Raises LaunchError with the output if there is none."""
    async for line in process.stdout:
        if line.startswith(mark):
            return msgspec.json.decode(line[len(mark) :], type=BootstrapReport)
    done: Any = await process.wait()
    said = " / ".join((done.stderr or b"").decode(errors="replace").strip().splitlines()[-_LOG_LINES:])
    raise LaunchError(f"Python could not be started there: {said or f'exit code {done.exit_status}'}")


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
