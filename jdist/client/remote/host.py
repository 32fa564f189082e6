"""Remote host: one ssh login to a host, through which this process reaches the clusters there.

ssh is OpenSSH's program, so that whatever makes ``ssh HOST`` work in a terminal works here. It needs no permission to
forward ports: the connections travel over its standard input and output (wire/transport/tunnel)::

    closed ──open──► connecting ──the other end has reported──► open ──the login ends──► waiting
      ▲  ▲               │ it cannot be reached                                          │    ▲
      │  └───────────────┘  (raised to who has called open)         a pause, the network │    │ it cannot
      │                                                      has changed, or it is needed│    │ be reached
      └───────────────────── it is not used ────── any of these              connecting ◄─┘────┘

Only the client's event loop changes the state. The ports at which this process's own connections to the host begin stay
the same all the time; a connection that is made while there is no tunnel waits for the next one. Where ssh asks for
something, the user is asked if a thread of this process waits for the login, and otherwise it fails.
"""

import asyncio
import contextlib
import getpass
import json
import logging
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import psutil
from msgspec.structs import replace

from jdist.client.remote import askpass
from jdist.client.remote.requests import Answer, Ping, Request
from jdist.client.threads import bridge
from jdist.core.errors import ConnectionLost, JdistError, LaunchError, Remedy
from jdist.core.settings import SshBootstrapSpec
from jdist.launch.launch_program import reap
from jdist.launch.ssh_command import BootstrapReport, bootstrap_command
from jdist.wire.transport.keys import LOOPBACK, Connection
from jdist.wire.transport.tunnel import Address, Tunnel, TunnelConnection

COMMAND = "JDIST_SSH"  # The variable with the command line of ssh, such as ``ssh -F FILE``.
PYTHON = "JDIST_AT_PYTHON"  # The variable with the interpreter on the other host.
_OPTIONS = {
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ConnectTimeout": "15",
    "ClearAllForwardings": "yes",  # those of a configuration would meet their own ports in use
    "RemoteCommand": "none",
}
_ATTEMPT = 60.0  # Seconds for a login and the start of Python there.
_ASKED = 300.0  # The same where the user may be asked for something.
_LONGEST_PAUSE = 60.0
_LOOK = 0.5  # Seconds between two looks at the network while there is no connection.
_WATCH = 2.0  # The same while there is one.
_ASLEEP = 5.0  # Seconds more than that between two looks mean that this computer slept.
_PROBE = 3.0  # Seconds for the other end to answer when the connection may have broken.
_NEEDED = 20.0  # Seconds for a connection to be back that is needed now.
ANSWER_TIMEOUT = 60.0
_LAST_LINES = 3
_GREETING = 64 << 10  # Bytes that a login may print before the report.

State = Literal["closed", "connecting", "open", "waiting"]
T = TypeVar("T")

_log = logging.getLogger("jdist.client")


class RemoteHost:
    """A host, by the name that ssh knows it by. All methods are called on the client's event loop."""

    def __init__(self, name: str):
        self.name = name
        self.state: State = "closed"
        self.problem = ""  # Why the last attempt to connect failed.
        self.away_since = 0.0  # By the wall clock; 0: it is not away.
        self._users = 0
        self._watchers: list[Callable[[], object]] = []
        self._tunnel: Tunnel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._listeners: dict[Address, asyncio.Server] = {}
        self._waiting: list[tuple[TunnelConnection, Address]] = []  # Connections that wait for a tunnel.
        self._opening: asyncio.Task[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._needed = asyncio.Event()
        self._changed = asyncio.Event()  # Set with each change of the state.
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        self._listening: asyncio.Task[None] | None = None  # To what ssh complains of.

    def __repr__(self) -> str:
        return f"<RemoteHost {self.name}: {self.state}>"

    # ------------------------------------------------------------ its users

    async def open(self) -> None:
        """Use the host, and connect to it unless it is connected. Raises LaunchError. `release` ends the use."""
        self._users += 1
        try:
            if self.state == "closed":
                self._opening = self._opening or asyncio.ensure_future(self._open_first())
                await asyncio.shield(self._opening)
            else:
                await self.wait_open()
        except BaseException:
            self.release()
            raise

    async def _open_first(self) -> None:
        try:
            await self._connect(asks=True)
        finally:
            self._opening = None
        self._watching = asyncio.ensure_future(self._watch())

    def release(self) -> None:
        """End one use; the last one closes the connection."""
        self._users -= 1
        if self._users <= 0:
            self.close()

    def close(self) -> None:
        """Close the connection, whoever uses it."""
        self._users = 0
        self._set("closed")
        for task in (self._reconnecting, self._watching):
            if task is not None:
                task.cancel()
        self._reconnecting = self._watching = None
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for channel, _ in self._waiting:
            channel.reset()
        self._waiting.clear()
        self._end_login()

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Call ``watcher`` when the connection has broken and when it is back. Returns the way to end that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    @property
    def is_away(self) -> bool:
        """Whether the connection is broken."""
        return self.state not in ("open", "closed") and self.away_since > 0

    def describe(self) -> str:
        """Since when there is no connection, and why, in words."""
        seconds = max(0.0, time.time() - self.away_since)
        return f"no connection to {self.name} for {seconds:.0f} s{f' ({self.problem})' if self.problem else ''}"

    async def wait_open(self) -> None:
        """Wait until there is a connection; one that is broken is tried at once. Raises ConnectionLost."""
        if self.state == "open":
            return
        self._needed.set()
        try:
            async with asyncio.timeout(_NEEDED):
                while not self._tunnel:
                    if self.state == "closed":
                        raise ConnectionLost(f"the connection to {self.name} was closed")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            remedies = (Remedy("attach", "log in again", name=self.name + ":"),) if self._is_refused() else ()
            text = f"{self.describe()}; it is tried again and again, and runs there go on"
            raise ConnectionLost(text, remedies=remedies) from None

    def _is_refused(self) -> bool:
        return "ermission denied" in self.problem

    async def ask(self, request: Request, expected: type[T], timeout: float = ANSWER_TIMEOUT) -> T:
        """The other end's answer. Raises what it raises, ConnectionLost, TimeoutError."""
        await self.wait_open()
        assert self._tunnel is not None
        data = await self._tunnel.ask(msgspec.msgpack.encode(request), timeout)
        answer = msgspec.msgpack.decode(data, type=Answer)
        if answer.refused is not None:
            raise self._named_there(answer.refused.error())
        return msgspec.msgpack.decode(answer.value, type=expected)

    def _named_there(self, error: JdistError) -> JdistError:
        """The error with its suggested actions on the host's clusters."""
        error.remedies = tuple(
            replace(r, name=f"{self.name}:{r.name}") if r.name and r.action in ("attach", "stop") else r
            for r in error.remedies
        )
        error.message = f"{self.name}: {error.message}"
        return error

    async def reach(self, connection: Connection) -> Connection:
        """The connection of a cluster there, as it is used from here."""
        control = await self._listen((connection.host, connection.control_port))
        data = await self._listen((connection.host, connection.data_port))
        name = f"{self.name}:{connection.name}"
        return replace(connection, name=name, host=LOOPBACK, control_port=control, data_port=data)

    async def _listen(self, there: Address) -> int:
        """The port of this host from which connections reach ``there``."""
        if there not in self._listeners:
            loop = asyncio.get_running_loop()
            make = lambda: TunnelConnection(lambda channel: self._carry(channel, there))  # noqa: E731
            self._listeners[there] = await loop.create_server(make, LOOPBACK, 0)
        return int(self._listeners[there].sockets[0].getsockname()[1])

    def _carry(self, channel: TunnelConnection, there: Address) -> None:
        if self._tunnel is not None and self.state == "open":
            self._tunnel.carry(channel, there)
        else:
            self._waiting = [(c, a) for c, a in self._waiting if not c.is_over] + [(channel, there)]

    # ------------------------------------------------------------ the connection

    def _set(self, state: State) -> None:
        was_away = self.is_away
        self.state = state
        self._changed.set()
        if state == "waiting" and not self.away_since:
            self.away_since = time.time()
        if self.is_away != was_away:
            for watcher in list(self._watchers):
                watcher()
        if state in ("open", "closed"):
            self.away_since, self.problem = 0.0, ""

    def _handle_end(self, tunnel: Tunnel) -> None:
        """The login has ended, or its connection has broken."""
        if tunnel is not self._tunnel:
            return
        self._tunnel = None
        self._end_login()
        if self.state == "open":
            _log.info("the connection to %s has ended: %s", self.name, " / ".join(self._said))
            self._set("waiting")
            self._reconnecting = asyncio.ensure_future(self._reconnect())

    async def _reconnect(self) -> None:
        pause = 1.0
        while self.state != "closed":
            await self._pause(pause)
            attempt = asyncio.ensure_future(self._connect(asks=False))
            changed = asyncio.ensure_future(_network_changes())
            try:
                await asyncio.wait({attempt, changed}, return_when=asyncio.FIRST_COMPLETED)
                if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                    return
                if attempt.done() and isinstance(error := attempt.exception(), JdistError):
                    self.problem = error.message
                pause = 0.1 if changed.done() else min(_LONGEST_PAUSE, 2 * pause)
            finally:
                changed.cancel()
                attempt.cancel()
                await asyncio.wait({attempt, changed})
                if self.state == "connecting":
                    self._set("waiting")

    async def _pause(self, seconds: float) -> None:
        """Wait, at most until the connection is needed, the network changes or this computer wakes up."""
        self._needed.clear()
        waits = {asyncio.ensure_future(self._needed.wait()), asyncio.ensure_future(_network_changes())}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)

    async def _watch(self) -> None:
        """See whether the connection has survived, whenever the network changes or this computer wakes up."""
        while True:
            await _network_changes(_WATCH)
            await self.probe()

    async def probe(self) -> None:
        """End a connection on which nothing arrives any more, so that another is made."""
        tunnel = self._tunnel
        if self.state != "open" or tunnel is None:
            return
        heard = tunnel.heard
        with contextlib.suppress(TimeoutError, ConnectionLost):
            await tunnel.ask(msgspec.msgpack.encode(Ping()), _PROBE)
        if tunnel.heard == heard:
            tunnel.close()

    async def _connect(self, *, asks: bool) -> None:
        """Log in. Raises LaunchError with ssh's reason and what to do."""
        self._set("connecting")
        try:
            async with asyncio.timeout(_ASKED if asks else _ATTEMPT):
                self._tunnel = await self._log_in(asks=asks)
        except TimeoutError:
            self._end_login()
            raise LaunchError(f"{self.name} does not answer; ssh {self.name} must work") from None
        except BaseException:
            self._end_login()
            raise
        finally:
            if self._tunnel is None and not self.away_since:
                self._set("closed")
        self._set("open")
        waiting, self._waiting = self._waiting, []
        for channel, there in waiting:
            if not channel.is_over:
                self._tunnel.carry(channel, there)

    async def _log_in(self, *, asks: bool) -> Tunnel:
        if sys.platform == "win32":
            raise LaunchError("logins to other hosts need Linux or macOS here; on Windows, run Jupyter in WSL")
        given = os.environ.get(PYTHON, "")
        command, bootstrap = bootstrap_command([given] if given else [sys.executable, "python3"])
        spec = SshBootstrapSpec(f"jdist-{secrets.token_hex(8)} ", ("serve",))
        has_terminal = asks and "ipykernel" not in sys.modules and sys.stdin is not None and sys.stdin.isatty()
        options = [f"-o{name}={value}" for name, value in _OPTIONS.items()]
        async with _AskpassServer(self.name) if asks and not has_terminal else contextlib.nullcontext() as questions:
            if not asks:
                options.append("-oBatchMode=yes")
            words = [*shlex.split(os.environ.get(COMMAND, "ssh")), "-T", *options, self.name, command]
            own, ssh_end = socket.socketpair()
            with ssh_end:
                try:
                    environment = {**os.environ, **(questions.environment if questions else {})}
                    process = _start(words, ssh_end, environment, own_session=not has_terminal)
                except OSError as e:
                    own.close()
                    raise LaunchError(f"{words[0]} cannot be run: {e.strerror}") from None
            reap(process)
            self._process = process
            own.setblocking(False)
            try:
                await self._listen_to(process)
                rest = await self._begin(own, bootstrap + msgspec.json.encode(spec) + b"\n", spec.mark)
                return await self._make_tunnel(own, rest)
            except BaseException:
                own.close()
                raise

    async def _listen_to(self, process: subprocess.Popen[bytes]) -> None:
        """Keep the last lines of what ssh complains of."""
        self._said.clear()
        reader = asyncio.StreamReader(limit=_GREETING)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stderr)

        async def read() -> None:
            async for line in reader:
                if text := line.decode(errors="replace").strip():
                    self._said.append(text)

        self._listening = asyncio.ensure_future(read())

    async def _begin(self, own: socket.socket, spec: bytes, mark: str) -> bytes:
        """Send the bootstrap and read its report; what has come behind it. Raises LaunchError."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # ssh has ended already, and says why
            await loop.sock_sendall(own, spec)
        read = bytearray()
        while True:
            try:
                piece = await loop.sock_recv(own, 1 << 16)
            except OSError:
                piece = b""
            read += piece
            before, found, after = read.partition(mark.encode())
            if found and b"\n" in after:
                line, _, rest = after.partition(b"\n")
                report = msgspec.json.decode(line, type=BootstrapReport)
                if report.error:
                    raise LaunchError(f"{self.name}: {report.error}")
                return bytes(rest)
            if not piece or len(before) > _GREETING:
                if self._listening is not None:
                    await asyncio.wait({self._listening}, timeout=1.0)
                printed = [line.strip() for line in before.decode(errors="replace").splitlines() if line.strip()]
                raise LaunchError(self._explain(" / ".join([*self._said] or printed[-_LAST_LINES:])))

    def _explain(self, said: str) -> str:
        """Why there is no login, in ssh's words, and what to do."""
        text = f"ssh {self.name}: {said.rstrip('.') or 'it ended without a word'}"
        if "ermission denied" in said or "Host key verification failed" in said:
            return (
                f"{text}. If it asks for something that cannot be asked here, log in once in a terminal with a master "
                f"connection that stays open (ControlMaster, ControlPersist in ~/.ssh/config): ssh {self.name}"
            )
        return text

    async def _make_tunnel(self, own: socket.socket, begun: bytes) -> Tunnel:
        loop = asyncio.get_running_loop()
        tunnel: Tunnel = Tunnel(None, lambda: self._handle_end(tunnel))
        await loop.create_connection(lambda: tunnel, sock=own)
        if begun:
            tunnel.data_received(begun)
        return tunnel

    def _end_login(self) -> None:
        """End ssh. Its end there ends with it."""
        tunnel, self._tunnel = self._tunnel, None
        if tunnel is not None:
            tunnel.close()
        if self._listening is not None:
            self._listening.cancel()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            self._process = None


def _start(
    words: list[str], stream: socket.socket, env: dict[str, str], *, own_session: bool
) -> subprocess.Popen[bytes]:
    """Start ssh with its input and output at the socket."""
    end = stream.fileno()
    return subprocess.Popen(
        words, stdin=end, stdout=end, stderr=subprocess.PIPE, env=env, start_new_session=own_session
    )


_hosts: dict[str, RemoteHost] = {}


def remote_host(name: str) -> RemoteHost:
    """The host of this name; this process has one connection to it. Called on the client's loop."""
    if name not in _hosts:
        _hosts[name] = RemoteHost(name)
    return _hosts[name]


async def open_host(name: str) -> None:
    """Use the host of this name; :meth:`RemoteHost.release` ends that. Raises LaunchError."""
    await remote_host(name).open()


def _network() -> object:
    """This computer's addresses, and which of its interfaces are up."""
    addresses = {name: [a.address for a in found] for name, found in psutil.net_if_addrs().items()}
    return addresses, {name: stats.isup for name, stats in psutil.net_if_stats().items()}


async def _network_changes(every: float = _LOOK) -> None:
    """Return when the network has changed, or this computer has slept."""
    before, looked = _network(), time.time()
    while True:
        await asyncio.sleep(every)
        now, at = _network(), time.time()
        if now != before or at - looked > every + _ASLEEP:
            return
        before, looked = now, at


class _AskpassServer:
    """Passes what ssh asks on to the user, while a login is under way."""

    def __init__(self, host: str):
        self._host = host
        self._token = secrets.token_hex(16)
        self._directory = Path()
        self._server: asyncio.Server | None = None
        self.environment: dict[str, str] = {}

    async def __aenter__(self) -> "_AskpassServer":
        self._directory = Path(tempfile.mkdtemp(prefix="jdist-askpass-"))
        program = self._directory / "askpass"
        words = shlex.join([sys.executable, "-I", askpass.__file__])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o700)
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.environment = {
            "SSH_ASKPASS": str(program),
            "SSH_ASKPASS_REQUIRE": "force",
            "DISPLAY": os.environ.get("DISPLAY", ":0"),  # releases before 8.4 ask only where there is one
            askpass.VARIABLE: f"{port} {self._token}",
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ValueError, OSError, KeyError):
            asked: dict[str, Any] = json.loads(await reader.readline())
            if secrets.compare_digest(asked["token"], self._token):
                answer = await bridge().ask(lambda: _ask(self._host, asked["text"], asked["about"]))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()


def _ask(host: str, text: str, about: str) -> str:
    """Ask the user, on the thread that waits. Raises what the front end raises where it takes no input."""
    prompt = text if host in text else f"{host}: {text}"
    if about == "none":  # a key is to be touched
        print(prompt)
        return ""
    if about == "confirm" or "yes/no" in text:
        return input(prompt + " ")
    return getpass.getpass(prompt + " ")
