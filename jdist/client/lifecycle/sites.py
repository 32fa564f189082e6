"""Sites: where clusters are, this host or one behind ssh, and what is asked of the host of a controller.

A cluster of another site is called ``HOST:NAME``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from jdist.client import find
from jdist.client.lifecycle.start import OnWaiting, Waiting, plan_launch, start_controller
from jdist.client.remote.host import RemoteHost, remote_host
from jdist.client.remote.requests import (
    BeginCommand,
    CommandBegun,
    CommandOutput,
    EndCommand,
    FindCluster,
    Known,
    ListClusters,
    Reached,
    ReadCommand,
    RemoveLeftovers,
    Revive,
    WaitRemoved,
)
from jdist.core.errors import ConnectionLost, LaunchError, ProtocolError, Remedy, UsageError
from jdist.core.settings import Settings
from jdist.launch.base import find_launcher
from jdist.launch.join import RUN
from jdist.wire.processes import has_ended
from jdist.wire.transport.keys import Connection, connection_path, read_connection

_EXIT = 5.0  # Seconds for a process that has closed its connections to be gone.
AT = "JDIST_AT"  # The variable with the host that command lines use unless they are told another.
_REMOVED = 15.0  # Seconds for a controller that has ended to remove its files.
_LAST_LINES = 3
_REVIVED = 60.0  # Seconds for another host to start a controller again.


class Site(Protocol):
    """A host, as a client uses it."""

    host: RemoteHost | None
    """None for this host."""

    async def open(self) -> None:
        """Begin to use it. Raises LaunchError."""

    def close(self) -> None:
        """End that."""

    async def clusters(self) -> dict[str, Known]:
        """The user's clusters there, running or restartable, by name, newest first."""

    async def find(self, name: str | None) -> Known:
        """The cluster called ``name``, or the newest. Raises UsageError when there is none."""

    async def revive(self, connection: Connection, *, is_dead: bool = False) -> Reached:
        """Have the cluster's controller started again if it has died; ``is_dead``: it is known to have died.

        Raises ConnectionLost, LaunchError.
        """

    async def seconds_left(self, connection: Connection) -> float:
        """For how long the controller can still be started again; 0 if it is alive or cannot be."""

    async def wait_removed(self, connection: Connection) -> None:
        """Wait until a controller that ends has removed its files, the last thing it does. Raises TimeoutError."""

    async def remove_leftovers(self, settings: Settings) -> None:
        """Remove what a scheduler still holds for a cluster that has stopped. Raises LaunchError."""


class LocalSite:
    """The host of this process."""

    host: RemoteHost | None = None

    async def open(self) -> None:
        """Nothing needs to be done."""

    def close(self) -> None:
        """Nothing needs to be done."""

    async def clusters(self) -> dict[str, Known]:
        found = await asyncio.to_thread(lambda: find.connections() | find.restartable())
        return {name: _known(connection) for name, connection in found.items()}

    async def find(self, name: str | None) -> Known:
        return _known(find.find(name))

    async def revive(self, connection: Connection, *, is_dead: bool = False) -> Reached:
        """As :class:`Site` says. The process of a controller that is known to have died may exist for a moment."""
        charter = find.charter_of(connection)
        if charter is not None and (is_dead or not find.listens(connection)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT):
                    while not has_ended(connection.pid, connection.started):  # noqa: ASYNC110 — that triggers no event here
                        await asyncio.sleep(0.01)
        if find.restart_time(connection) <= 0:  # its controller is alive, or cannot be started again from here
            if is_dead and not await asyncio.to_thread(find.listens, connection):
                raise ConnectionLost("no agent waits for it any more")
            return Reached(connection, is_new=False)
        assert charter is not None
        await asyncio.to_thread(start_controller, charter.settings, charter)
        connection = read_connection(connection_path(find.directory(), connection.name))
        if connection.cluster != charter.cluster:
            remedies = (Remedy("attach", "use it", name=connection.name),)
            raise ConnectionLost(f"cluster {connection.name} is another one now", remedies=remedies)
        return Reached(connection, is_new=True)

    async def seconds_left(self, connection: Connection) -> float:
        return find.restart_time(connection)

    async def wait_removed(self, connection: Connection) -> None:
        path = connection_path(find.directory(), connection.name)
        if not find.is_here(connection):
            return
        async with asyncio.timeout(_REMOVED):
            with contextlib.suppress(OSError, ProtocolError):  # the file is gone
                while read_connection(path).cluster == connection.cluster:  # noqa: ASYNC110 — that triggers no event here
                    await asyncio.sleep(0.01)

    async def remove_leftovers(self, settings: Settings) -> None:
        await find_launcher(settings.launcher)(plan_launch(settings)).remove_leftovers()


def _known(connection: Connection) -> Known:
    charter = find.charter_of(connection)
    is_here, left = find.is_here(connection), find.restart_time(connection)
    if charter is None:
        return Known(connection, is_here, seconds_left=left)
    return Known(connection, is_here, charter.settings, charter.origin, left)


class RemoteSite:
    """A host behind ssh. The connections that it gives are those that this process can use."""

    def __init__(self, host: RemoteHost):
        self.host: RemoteHost | None = host
        self._host = host
        self._there: dict[str, Connection] = {}  # Connections as they are there, by the cluster's identifier.
        self._is_open = False

    async def open(self) -> None:
        if not self._is_open:
            await self._host.open()
            self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._host.release()

    async def clusters(self) -> dict[str, Known]:
        found = await self._host.ask(ListClusters(), list[Known])
        return {k.connection.name: k for k in (replace(k, connection=self._host.named(k.connection)) for k in found)}

    async def find(self, name: str | None) -> Known:
        return await self._reached(await self._host.ask(FindCluster(name or ""), Known))

    async def _reached(self, known: Known) -> Known:
        connection = known.connection
        self._there[connection.cluster] = connection
        return replace(known, connection=await self._host.reach(connection))

    async def revive(self, connection: Connection, *, is_dead: bool = False) -> Reached:
        found = await self._host.ask(Revive(self._there[connection.cluster], is_dead), Reached, _REVIVED)
        self._there[connection.cluster] = found.connection
        return Reached(await self._host.reach(found.connection), found.is_new)

    async def seconds_left(self, connection: Connection) -> float:
        with contextlib.suppress(UsageError):
            name = self._there[connection.cluster].name
            known = await self._host.ask(FindCluster(name), Known)
            if known.connection.cluster == connection.cluster:
                return known.seconds_left
        return 0.0

    async def wait_removed(self, connection: Connection) -> None:
        await self._host.ask(WaitRemoved(self._there[connection.cluster]), bool, 2 * _REMOVED)

    async def remove_leftovers(self, settings: Settings) -> None:
        await self._host.ask(RemoveLeftovers(settings), bool)

    async def start(self, words: Sequence[str], name: str, on_waiting: OnWaiting) -> str:
        """Start a cluster there; its name. ``on_waiting`` gets what the start writes. Raises LaunchError.

        When this is cancelled, the start is interrupted, and ends what it has begun.
        """
        said: list[str] = []
        last = ""  # The newest line is held back: the final one says that the cluster is ready, as the caller does.

        def hear(text: str) -> None:
            nonlocal last
            for line in text.splitlines():
                if last.startswith(RUN):
                    on_waiting(Waiting(f"{last}\n{line}", is_instruction=True))
                    last = ""
                    continue
                if last:
                    on_waiting(Waiting(last))
                    said.append(last)
                last = line

        name = await self.carry_out("start", words, name, hear)
        if name not in await self.clusters_there():
            raise LaunchError(self.failure([*said, *filter(None, [last])], "the start"))
        return name

    async def carry_out(self, verb: str, words: Sequence[str], name: str, on_text: Callable[[str], object]) -> str:
        """Carry out a command there, on a cluster as it is called there; returns its name.

        It goes on there if the connection breaks. ``on_text`` gets what it writes, in whole lines, which alone say how
        it ended. When this is cancelled, the command is interrupted, and ends what it has begun. Raises ConnectionLost.
        """
        command = await self._host.ask(BeginCommand(verb, tuple(words), name), CommandBegun)
        offset, is_over = 0, False
        try:
            while not is_over:
                try:
                    output = await self._host.ask(ReadCommand(command, offset), CommandOutput)
                except ConnectionLost as e:  # it goes on there
                    if self._host.state == "closed":
                        raise
                    on_text(e.message)
                    await asyncio.sleep(1.0)
                    continue
                offset, is_over = output.offset, output.is_over
                if output.text:
                    on_text(output.text.rstrip())
        except asyncio.CancelledError:
            await asyncio.shield(self._host.ask(EndCommand(command), bool, _REVIVED))
            raise
        return command.name

    def failure(self, said: Sequence[str], what: str) -> str:
        """Why a command failed, by the last lines that it wrote."""
        return f"{self._host.name}: {' / '.join(said[-_LAST_LINES:]) or f'{what} ended without a word'}"

    async def clusters_there(self) -> set[str]:
        """The names of the clusters, as they are called there."""
        return {known.connection.name for known in await self._host.ask(ListClusters(), list[Known])}


@contextlib.asynccontextmanager
async def using(site: Site) -> AsyncIterator[Site]:
    """Use a site for a while."""
    await site.open()
    try:
        yield site
    finally:
        site.close()


async def list_at(host: str) -> dict[str, Known]:
    """The user's clusters at a site, running or restartable, by name, newest first. Raises LaunchError."""
    async with using(site_of(host)) as site:
        return await site.clusters()


def split_name(name: str | None, at: str = "") -> tuple[str, str | None]:
    """The host and the cluster that ``name`` is, which may be ``HOST:NAME`` or ``HOST:`` (the newest there)."""
    host, colon, local = (name or "").rpartition(":")
    return (host, local or None) if colon else (at, name)


def site_of(host: str) -> Site:
    """The site called ``host``; "" is this host. Called on the client's loop."""
    return RemoteSite(remote_host(host)) if host else LocalSite()
