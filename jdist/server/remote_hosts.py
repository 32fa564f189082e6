"""Remote hosts: the clusters behind ssh that pages look at, through one login of the server's own for each host.

A host is in use from a page's first look at one of its clusters, or from a login that a page asks for::

    unused ── a page looks ──► logging in ── there is a login ──► open ◄── the login is back ──► reconnecting
      ▲                          │   ▲                              │                               │
      │                          ▼   │ a page logs in, or looks     │                               │
      │                         refused                             │                               │
      └────────────── no page has looked for FORGOTTEN seconds ─────┴───────────────────────────────┘

``FollowedHost._follow`` alone makes these transitions, but for a login that a page asks for: ``login`` begins it, and
ssh's questions are answered by that page, one call after the other. A look never asks the user anything. The states of
the login itself are those of `RemoteHost`. All of this lives on the client's loop.

At most MOST_HOSTS hosts are in use. A user who may only read uses no host that no other user has had in use: else such
a user could start any number of logins, to hosts of any name.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from jdist.client.lifecycle.sites import RemoteSite, split_name
from jdist.client.remote.host import RemoteHost, remote_host
from jdist.client.remote.login import Advice, is_denied, is_secret
from jdist.client.remote.requests import Known
from jdist.core.errors import JdistError, LaunchError, UsageError
from jdist.server.snapshots import LoginState

FORGOTTEN = 300.0  # Seconds after the last look of a page at a cluster until it is not followed any more.
MOST_HOSTS = 16  # In use at the same time.
_PATIENCE = 8.0  # Seconds for which a page waits for the next step of a login.
_LISTED = 3.0  # Seconds for which a list of a host's clusters is waited for.
_PACE = 1.0  # Seconds between two lists of a host's clusters at least.
_RELIST = 5.0  # Seconds until they are listed again while one is not running.
_HOST = re.compile(r"(?!-)[A-Za-z0-9._%+@:\[\]/-]{1,255}")  # The characters of a destination of ssh.
_ADVICE = Advice(
    "Log in with the button Log in in jdist's panel",
    "Install jdist, in the start dialog, makes an environment with it there",
    "Python there, in the start dialog, takes its path or the name of a conda environment",
    f"the server's login ends {FORGOTTEN / 60:.0f} minutes after the last page that shows a cluster of it",
)


class LoginArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What a page sends for a login: what it begins with, or the ``answer`` to a ``question``."""

    question: int | None = None  # None: the login begins.
    answer: str | None = None  # None: it goes on without one, or the user has none.
    python: str = ""  # As of :meth:`RemoteHost.choose`; empty: as at the last login that worked.
    install: bool = False  # Make an environment with jdist there if it is missing.


def read_login(asked: Mapping[str, Any]) -> LoginArguments:
    """What a page asks for. Raises UsageError."""
    try:
        given = msgspec.convert({key: value for key, value in asked.items() if value is not None}, LoginArguments)
    except msgspec.ValidationError as e:
        raise UsageError(f"login: {e}") from None
    if given.python.startswith("-") or not given.python.isprintable():
        raise UsageError(f"python: a path or the name of a conda environment, not {given.python!r}")
    return given


class _Question:
    """What ssh asks for."""

    def __init__(self, number: int, text: str, about: str):
        self.shown = LoginState("asks", text, number, is_secret(text, about))
        self.answered: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def answer(self, answer: str | None) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


Adopt = Callable[["FollowedHost", Mapping[str, Known]], Awaitable[None]]
"""Called with the clusters of a host that pages look at, by name; those that do not run are left out."""


class FollowedHost:
    """A host. ``adopt`` gets what there is; ``is_starting`` says whether a cluster of this name is being started."""

    def __init__(self, host: RemoteHost, adopt: Adopt, is_starting: Callable[[str], bool]):
        self.host = host
        self.host.asked, self.host.advice, self.host.tell = "no one", _ADVICE, self._tell
        self.problem = ""  # Why there is no login.
        self._adopt = adopt
        self._is_starting = is_starting
        self._site = RemoteSite(host)
        self._looked: dict[str, float] = {}  # When a page has looked at a cluster last, on the loop's clock.
        self._used = asyncio.get_running_loop().time()
        self._has_use = False  # The login is kept open by this object.
        self._login: asyncio.Task[None] | None = None
        self._asks = False  # A page answers the questions of this login.
        self._question: _Question | None = None
        self._numbers = itertools.count(1)
        self._told = ""  # What the login does, or waits for without an answer.
        self._shown = ""  # The same, as the page was told last.
        self._step = asyncio.Event()  # Set when a login has ended or asks for something.
        self._relist = asyncio.Event()
        self._awaited: list[asyncio.Future[None]] = []  # Settled at the end of the next list that begins.
        self._unwatch = host.watch(self._relist.set)
        self._following = asyncio.ensure_future(self._follow())

    @property
    def has_login(self) -> bool:
        """Whether the server has logged in there; the login may be broken now."""
        return self._has_use

    @property
    def names(self) -> list[str]:
        """The clusters at which pages look."""
        return list(self._looked)

    def add_done_callback(self, callback: Callable[[asyncio.Task[None]], None]) -> None:
        """Call ``callback`` when no page looks any more."""
        self._following.add_done_callback(callback)

    # ------------------------------------------------------------ what pages want

    async def look(self, name: str) -> None:
        """A page looks at a cluster. The first time, this waits a moment until something is known of it."""
        is_first = name not in self._looked
        self._looked[name] = self._used = asyncio.get_running_loop().time()
        if is_first:
            await self.wait_listed()
        elif self.problem and not is_denied(self.problem):
            self._relist.set()

    def list_again(self) -> None:
        """A cluster may have come, changed or gone."""
        self._relist.set()

    async def wait_listed(self) -> None:
        """List the clusters, and wait for that, but not for long."""
        listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.append(listed)
        self._relist.set()
        await asyncio.wait({listed}, timeout=_LISTED)

    async def login(self, asked: LoginArguments = LoginArguments()) -> LoginState:  # noqa: B008 — it is frozen
        """Log in for a page, or with a question go on with that, and return the next step.

        Raises LaunchError; UsageError if another Python is in use there.
        """
        question, answer, begins = asked.question, asked.answer, asked.question is None
        self._used = asyncio.get_running_loop().time()
        if self._question is not None and self._question.shown.question == question:
            self._settle(answer)
        if begins and (silent := self._login) is not None and not self._asks:  # it fails where it would have to ask
            await asyncio.wait({silent})
            if silent.cancelled():  # and with it this login, which was waiting for it
                raise LaunchError(self.problem)
        if begins:
            self.host.choose(asked.python, install=asked.install)
        if begins and self.host.state != "open":
            self._begin_login(asks=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while self._login is not None and self._question is None and self._told == self._shown:
                    self._step.clear()
                    await self._step.wait()
        if self._question is not None:
            return self._question.shown
        if self._login is not None:
            self._shown = self._told
            return LoginState("connecting", self._told)
        if self.host.state != "open":
            raise LaunchError(self.problem or self.host.describe())
        return LoginState("open")

    async def end_login(self) -> None:
        """Cancel the login that is under way, and what a page has asked for that waits for it."""
        if self._login is not None:
            self._login.cancel()
            await asyncio.wait({self._login})
            await self.host.end_opening()

    async def site(self) -> RemoteSite:
        """The host once it is logged in to; the login asks nothing. Raises LaunchError."""
        self._used = asyncio.get_running_loop().time()
        if not self._has_use:
            await asyncio.wait({self._begin_login(asks=False)})
            if not self._has_use:
                raise LaunchError(self.problem or f"the login to {self.host.name} has ended")
        return self._site

    # ------------------------------------------------------------ the login

    def _begin_login(self, *, asks: bool) -> asyncio.Task[None]:
        if self._login is None:
            self._asks, self._told, self._shown, self.problem = asks, "", "", ""
            self.host.asked = self._ask if asks else "no one"
            self._login = asyncio.ensure_future(self._log_in())
            self._login.add_done_callback(self._login_ended)
        return self._login

    async def _log_in(self) -> None:
        """Log in; ``problem`` says why that has failed."""
        try:
            await self.host.open()
        except JdistError as e:
            self.problem = e.message
            return
        if self._has_use:
            self.host.release()
        self._has_use = True

    def _login_ended(self, login: asyncio.Task[None]) -> None:
        if login.cancelled():
            self.problem = f"the login to {self.host.name} was cancelled"
        self.host.asked = "no one"
        self._settle(None)
        self._login = None
        self._step.set()
        if self._asks or self._has_use:  # why a silent one has failed, the list that began it shows
            self._relist.set()

    def _settle(self, answer: str | None) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.answer(answer)

    async def _ask(self, text: str, about: str) -> str | None:
        """The page's answer to what ssh asks. It is kept nowhere."""
        if self._login is None:  # it was cancelled
            return None
        if about == "none":  # a key is to be touched
            await self._tell(text)
            return ""
        question = self._question = _Question(next(self._numbers), text, about)
        self._step.set()
        return await question.answered

    async def _tell(self, text: str) -> None:
        self._told = text
        self._step.set()

    # ------------------------------------------------------------ its clusters

    async def _follow(self) -> None:
        try:
            while (left := self._forget()) > 0:
                self._relist.clear()
                awaited, self._awaited = self._awaited, []
                is_settled = await self._list()
                for each in awaited:
                    each.set_result(None)
                await asyncio.sleep(_PACE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left if is_settled else min(left, _RELIST)):
                        await self._relist.wait()
        finally:
            self._end()

    def _forget(self) -> float:
        """Forget clusters at which no page looks; the seconds until the next is, or the host is not used any more."""
        now = asyncio.get_running_loop().time()
        for name, looked in list(self._looked.items()):
            if self._is_starting(name):
                self._looked[name] = now
            elif looked + FORGOTTEN <= now:
                del self._looked[name]
        return max([self._used, *self._looked.values()]) + FORGOTTEN - now

    async def _list(self) -> bool:
        """List the clusters and pass them on; returns False if they are to be listed again soon."""
        if self.host.is_away:  # its clusters are shown as they were
            return True
        try:
            # Only a page's login can help, or no page looks at a cluster, as after a page's login that has failed.
            if not self._has_use and (is_denied(self.problem) or not self._looked):
                raise LaunchError(self.problem)
            if not self._has_use:
                self.problem = ""
                await self._adopt(self, {})
            known = await (await self.site()).clusters()
        except (JdistError, TimeoutError) as e:
            if self._has_use:  # the login has broken meanwhile, or is slow
                return self.host.is_away
            self.problem = self.problem or str(e)
            await self._adopt(self, {})
            return True
        self.problem = ""
        for name in [n for n in self._looked if n not in known and not self._is_starting(n)]:
            del self._looked[name]
        wanted = {name: each for name, each in known.items() if name in self._looked}
        await self._adopt(self, wanted)
        return wanted.keys() == self._looked.keys() and not any(each.seconds_left for each in wanted.values())

    def _end(self) -> None:
        self._looked.clear()
        self._unwatch()
        if self._login is not None:
            self._login.cancel()
        if self._has_use:
            self._has_use = False
            self.host.release()

    async def close(self) -> None:
        """Log out."""
        self._following.cancel()
        await asyncio.wait({self._following})


class RemoteHosts:
    """The hosts that are in use, by their names."""

    def __init__(self, adopt: Adopt, is_starting: Callable[[str], bool]):
        self._adopt = adopt
        self._is_starting = is_starting
        self._hosts: dict[str, FollowedHost] = {}
        self._accepted: set[str] = set()  # Hosts that have been in use for users who may log in.

    @property
    def names(self) -> list[str]:
        """The hosts that are in use."""
        return list(self._hosts)

    def use(self, name: str) -> FollowedHost:
        """The host of this name, from now on in use. Raises UsageError for what is no host's name, or one too many."""
        if not _HOST.fullmatch(name):
            raise UsageError(f"{name!r} is no host's name: write it as in ssh HOST, in letters, digits and ._%+@:[]/-")
        if name.count(":") == 1 and "//" not in name:
            raise UsageError(f"{name} is no host's name, but a cluster's: the host is {name.partition(':')[0]}")
        if name not in self._hosts:
            if len(self._hosts) >= MOST_HOSTS:
                raise UsageError(
                    f"{name} cannot be used yet: {MOST_HOSTS} hosts are in use, as many as may be. A host is free "
                    f"{FORGOTTEN / 60:.0f} minutes after the last page that shows a cluster of it"
                )
            self._accepted.add(name)
            used = self._hosts[name] = FollowedHost(remote_host(name), self._adopt, self._is_starting)
            used.add_done_callback(lambda _: self._forget(used))
        return self._hosts[name]

    def _forget(self, used: FollowedHost) -> None:
        if self._hosts.get(used.host.name) is used:
            del self._hosts[used.host.name]
            asyncio.ensure_future(self._adopt(used, {}))  # noqa: RUF006 — it never waits for long

    async def look(self, name: str, *, may_log_in: bool = True) -> None:
        """A page looks at the cluster ``HOST:NAME``. Raises UsageError.

        Without ``may_log_in``, nothing happens unless the host has been in use for another user who may.
        """
        host, local = split_name(name)
        if not may_log_in and host not in self._accepted:
            return
        if local is None:
            raise UsageError(f"{name} is a host: a cluster there is called {name}NAME")
        await self.use(host).look(name)

    def python_of(self, name: str) -> str:
        """The Python that a page has named for the host of the cluster ``HOST:NAME``; "" if none was."""
        used = self._hosts.get(split_name(name)[0])
        return used.host.python if used is not None else ""

    def list_again(self, name: str) -> None:
        """The cluster ``HOST:NAME`` may have come, changed or gone."""
        if (used := self._hosts.get(split_name(name)[0])) is not None:
            used.list_again()

    async def wait_listed(self, name: str) -> None:
        """The cluster ``HOST:NAME`` is there now: list those of its host, and wait for that, but not for long."""
        if (used := self._hosts.get(split_name(name)[0])) is not None:
            await used.wait_listed()

    async def end_login(self, name: str) -> None:
        """Cancel a login that a page has asked for."""
        if (used := self._hosts.get(name)) is not None:
            await used.end_login()

    async def close(self) -> None:
        """Log out everywhere; clusters go on."""
        hosts, self._hosts = list(self._hosts.values()), {}
        for used in hosts:
            await used.close()
