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
something, `RemoteHost.asked` answers, else the user if a thread of this process waits for the login; or it fails.
"""

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec
import psutil
from msgspec.structs import replace

from jdist.client.remote.login import Advice, Ask, Asked, Login, Tell, is_denied, tell_user, who_is_asked
from jdist.client.remote.requests import Answer, Ping, Request
from jdist.client.remote.wheel import make_wheel
from jdist.core.errors import ConnectionLost, JdistError, LaunchError, Remedy, UsageError
from jdist.wire.transport.keys import LOOPBACK, Connection
from jdist.wire.transport.tunnel import Address, TunnelConnection

PYTHON = "JDIST_AT_PYTHON"  # The variable with the interpreter on other hosts, unless a user names another.
_ATTEMPT = 60.0  # Seconds for a login and the start of Python there.
_ASKED = 300.0  # The same where the user may be asked for something.
_INSTALLED = 1800.0  # The same where jdist may be installed.
_LONGEST_PAUSE = 60.0
_LOOK = 0.5  # Seconds between two looks at the network while there is no connection.
_WATCH = 2.0  # The same while there is one.
_ASLEEP = 5.0  # Seconds more than that between two looks mean that this computer slept.
_PROBE = 3.0  # Seconds for the other end to answer when the connection may have broken.
_NEEDED = 20.0  # Seconds for a connection to be back that is needed now.
ANSWER_TIMEOUT = 60.0
_SILENCE = 15.0  # Seconds without a byte after which the other end is asked whether it is there.

State = Literal["closed", "connecting", "open", "waiting"]
T = TypeVar("T")


_log = logging.getLogger("jdist.client")


class RemoteHost:
    """A host, by the name that ssh knows it by. All methods are called on the loop of the client that uses it."""

    def __init__(self, name: str):
        self.name = name
        self.state: State = "closed"
        self.problem = ""  # Why the last attempt to connect failed.
        self.away_since = 0.0  # By the wall clock; 0: it is not away.
        self.advice = Advice.of_shell(name)
        self.asked: Asked | Ask | None = None  # Who answers ssh in a login that is waited for. None: as in a terminal.
        self.tell: Tell = tell_user  # Gets the lines of an installation.
        self.python = ""  # The interpreter there, or the name of a conda environment; "": as the environment says.
        self._installs = False  # Whether the next login may install jdist there.
        self._started = ""  # The same, in the last login that worked.
        self._users = 0
        self._watchers: list[Callable[[], object]] = []
        self._login: Login | None = None
        self._listeners: dict[Address, asyncio.Server] = {}
        self._listening = asyncio.Lock()
        self._waiting: list[tuple[TunnelConnection, Address]] = []  # Connections that wait for a tunnel.
        self._opening: asyncio.Task[None] | None = None  # A login for which a user waits.
        self._reconnecting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._needed = asyncio.Event()
        self._changed = asyncio.Event()  # Set with each change of the state.

    def __repr__(self) -> str:
        return f"<RemoteHost {self.name}: {self.state}>"

    # ------------------------------------------------------------ its users

    def choose(self, python: str, *, install: bool = False) -> None:
        """Start this Python there from the next login on, a path or the name of a conda environment.

        ``install``: the next login makes an environment with jdist there if it is missing.
        Raises UsageError if the login that is in use has started another.
        """
        if self.state != "closed" and python not in ("", self.python):
            used = self.python or "another Python"
            raise UsageError(f"{self.name} is in use here with {used}, not with {python}; {self.advice.free}")
        self.python = python or self.python
        self._installs = install and self.state != "open"

    async def open(self) -> None:
        """Use the host, and connect to it unless it is connected. Raises LaunchError. `release` ends the use.

        All who wait share one login, in which the user may be asked; it takes the place of attempts to reconnect.
        """
        self._users += 1
        try:
            while self.state != "open" or self._opening is not None:
                if self._opening is None or self._opening.done():  # done: it was cancelled before it began
                    self._opening = asyncio.ensure_future(self._open())
                opening = self._opening
                await asyncio.wait({opening})
                if not opening.cancelled():  # else all who waited for it have left: it is ours to begin another
                    await opening
        except BaseException:
            self.release()
            raise

    async def _open(self) -> None:
        try:
            await _end_task(self._reconnecting)
            self._reconnecting = None
            await self._connect(asks=True)
        except BaseException:
            if self.away_since:  # its clusters are still in use
                self._set("waiting")
                self._reconnecting = asyncio.ensure_future(self._reconnect())
            else:
                self.python = self._started
                self._set("closed")
            raise
        finally:
            self._opening = None
            self._installs = False
        if not self._users:
            self.close()
        elif self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())

    async def end_opening(self) -> None:
        """Cancel the login for which users wait; each of them that still does begins another."""
        await _end_task(self._opening)

    def release(self) -> None:
        """End one use; the last one closes the connection."""
        self._users -= 1
        if self._users <= 0:
            self.close()

    def close(self) -> None:
        """Close the connection, whoever uses it."""
        self._users = 0
        for task in (self._reconnecting, self._watching):
            if task is not None:
                task.cancel()
        self._reconnecting = self._watching = None
        self._stop_listening()
        for connection, _ in self._waiting:
            connection.reset()
        self._waiting.clear()
        self.away_since = 0.0
        if self._opening is not None:
            self._opening.cancel()  # sets the state when it has ended
            return
        login, self._login = self._login, None
        if login is not None:
            login.end()
        self._set("closed")

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
        why = f" ({self.problem})" if self.problem else ""
        if not self.away_since:
            return f"no connection to {self.name} yet{why}"
        return f"no connection to {self.name} for {max(0.0, time.time() - self.away_since):.0f} s{why}"

    async def wait_open(self) -> None:
        """Wait until there is a connection; one that is broken is tried at once. Raises ConnectionLost."""
        self._needed.set()
        try:
            async with asyncio.timeout(_NEEDED):
                while self._login is None:
                    if self.state == "closed":
                        raise ConnectionLost(f"the connection to {self.name} was closed")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            remedies = (Remedy("attach", "log in again", name=f"{self.name}:"),) if is_denied(self.problem) else ()
            text = f"{self.describe()}; it is tried again and again, and runs there go on"
            raise ConnectionLost(text, remedies=remedies) from None

    async def ask(self, request: Request, expected: type[T], timeout: float = ANSWER_TIMEOUT) -> T:
        """The other end's answer. Raises what it raises, or ConnectionLost."""
        await self.wait_open()
        assert self._login is not None
        try:
            data = await self._login.tunnel.ask(msgspec.msgpack.encode(request), timeout)
        except TimeoutError:
            raise ConnectionLost(f"{self.name} has not answered for {timeout:.0f} s") from None
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

    def named(self, connection: Connection) -> Connection:
        """The connection of a cluster there, under its name here; it leads nowhere yet."""
        return replace(connection, name=f"{self.name}:{connection.name}")

    async def reach(self, connection: Connection) -> Connection:
        """The connection of a cluster there, as it is used from here."""
        control = await self._listen((connection.host, connection.control_port))
        data = await self._listen((connection.host, connection.data_port))
        return replace(self.named(connection), host=LOOPBACK, control_port=control, data_port=data)

    async def _listen(self, there: Address) -> int:
        """The port of this host from which connections reach ``there``."""
        async with self._listening:
            if there not in self._listeners:
                loop = asyncio.get_running_loop()
                make = lambda: TunnelConnection(lambda connection: self._carry(connection, there))  # noqa: E731
                self._listeners[there] = await loop.create_server(make, LOOPBACK, 0)
            return int(self._listeners[there].sockets[0].getsockname()[1])

    def _stop_listening(self) -> None:
        """Accept no more connections; one that was accepted just now needs its listener for a moment, and is reset."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners.values():
            for each in listener.sockets:
                loop.remove_reader(each.fileno())
            loop.call_soon(listener.close)
        self._listeners.clear()

    def _carry(self, connection: TunnelConnection, there: Address) -> None:
        if self._login is not None:
            self._login.tunnel.carry(connection, there)
        elif self.state == "closed":
            connection.reset()
        else:
            self._waiting = [(c, a) for c, a in self._waiting if not c.is_over] + [(connection, there)]

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

    def _handle_end(self, login: Login) -> None:
        """The login has ended, or its connection has broken."""
        if login is not self._login:
            return
        self._login = None
        login.end()
        _log.info("the connection to %s has ended: %s", self.name, login.said)
        self._set("waiting")
        self._reconnecting = asyncio.ensure_future(self._reconnect())

    async def _reconnect(self) -> None:
        pause = 1.0
        while self._login is None:
            await self._pause(pause)
            attempt = asyncio.ensure_future(self._connect(asks=False))
            changed = asyncio.ensure_future(_network_changes())
            try:
                await asyncio.wait({attempt, changed}, return_when=asyncio.FIRST_COMPLETED)
                if attempt.done() and attempt.exception() is None:
                    return
                if attempt.done() and isinstance(error := attempt.exception(), JdistError):
                    self.problem = error.message
                pause = 0.1 if changed.done() else min(_LONGEST_PAUSE, 2 * pause)
            finally:
                await _end_task(changed)
                await _end_task(attempt)
            self._set("waiting")

    async def _pause(self, seconds: float) -> None:
        """Wait, at most until the connection is needed, the network changes or this computer wakes up."""
        waits = {asyncio.ensure_future(self._needed.wait()), asyncio.ensure_future(_network_changes())}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                await _end_task(each)
            self._needed.clear()

    async def _watch(self) -> None:
        """See whether the connection has survived when the network changes, this computer wakes up, or all is silent.

        ssh notices a silent break as well, but not if it is a guest of another ssh's connection (ControlMaster).
        """
        loop = asyncio.get_running_loop()
        while True:
            has_changed = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE):
                    await _network_changes(_WATCH)
                    has_changed = True
            if has_changed or (self._login is not None and loop.time() - self._login.tunnel.heard >= _SILENCE):
                await self.probe()

    async def probe(self) -> None:
        """End a connection on which nothing arrives any more, so that another is made."""
        if self._login is None:
            return
        tunnel = self._login.tunnel
        heard = tunnel.heard
        with contextlib.suppress(TimeoutError, ConnectionLost):
            await tunnel.ask(msgspec.msgpack.encode(Ping()), _PROBE)
        if tunnel.heard == heard:
            tunnel.close()

    async def _connect(self, *, asks: bool) -> None:
        """Log in. Raises LaunchError with ssh's reason and what to do."""
        self._set("connecting")
        installs = asks and self._installs
        wheel = await asyncio.to_thread(make_wheel) if installs else b""
        login = Login(self.name, self.advice, self.tell, self.python or os.environ.get(PYTHON, ""), wheel)
        try:
            async with asyncio.timeout(_INSTALLED if installs else _ASKED if asks else _ATTEMPT):
                await login.begin(self._handle_end, (self.asked or who_is_asked()) if asks else "no one")
            if login.tunnel.is_over:
                raise LaunchError(f"ssh {self.name}: the login ended at once: {login.said}")
            if not self._users:
                raise LaunchError(f"ssh {self.name}: the login is not needed any more")
        except TimeoutError:
            login.end()
            raise LaunchError(f"{self.name} does not answer; ssh {self.name} must work") from None
        except BaseException:
            login.end()
            raise
        self._login, self._started = login, self.python
        self._set("open")
        waiting, self._waiting = self._waiting, []
        for connection, there in waiting:
            if not connection.is_over:
                login.tunnel.carry(connection, there)


async def _end_task(task: "asyncio.Task[Any] | None") -> None:
    """Cancel a task, and wait until it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it has been seen


_hosts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RemoteHost]] = weakref.WeakKeyDictionary()


def remote_host(name: str) -> RemoteHost:
    """The host of this name; all clients of an event loop share one login to it.

    Raises UsageError for what is no host's name.
    """
    if name.count(":") == 1 and "//" not in name:
        raise UsageError(f"--at {name}: {name} is a cluster's name; --at takes a host: {name.partition(':')[0]}")
    hosts = _hosts.setdefault(asyncio.get_running_loop(), {})
    if name not in hosts:
        hosts[name] = RemoteHost(name)
    return hosts[name]


async def choose_python(host: str, python: str, *, install: bool = False) -> None:
    """Remember which Python is to be started at a host, as :meth:`RemoteHost.choose` says. Raises UsageError."""
    if install and not host:
        raise UsageError("--install: jdist is installed at a host behind ssh: add --at HOST")
    if python and not host:
        raise UsageError(
            f"--python {python}: it names the Python at a host behind ssh, with --at HOST; the launcher ssh takes its "
            "own after --"
        )
    if host:
        remote_host(host).choose(python, install=install)


async def open_host(name: str) -> RemoteHost:
    """Use the host of this name; :meth:`RemoteHost.release` ends that. Raises LaunchError."""
    host = remote_host(name)
    await host.open()
    return host


_VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel")  # Interfaces that lead to no other host.


def _network() -> object:
    """This computer's addresses by interface, and which are up."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = psutil.net_if_addrs().items()
    return {n: [a.address for a in addresses] for n, addresses in found if n in up and not n.startswith(_VIRTUAL)}


async def _network_changes(every: float = _LOOK) -> None:
    """Return when the network has changed, or this computer has slept."""
    before, looked = _network(), time.time()
    while True:
        await asyncio.sleep(every)
        now, at = _network(), time.time()
        if now != before or at - looked > every + _ASLEEP:
            return
        before, looked = now, at
