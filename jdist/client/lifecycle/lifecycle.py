"""Lifecycle: start a cluster or attach to one, restart its controller after a crash, detach, or stop the cluster.

A kernel's end leaves its cluster running, so that the next kernel can attach to it. A notebook that is restarted and
run from the top starts another cluster with the same options, and nothing would use the first. So a start stops an
earlier cluster that is idle and that no other program uses; otherwise the cluster is left, or the user is asked.
"""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from msgspec.structs import asdict, replace

from jdist.client import find
from jdist.client.attachment import Attachment
from jdist.client.lifecycle.sites import LocalSite, RemoteSite, Site, site_of, split_name, using
from jdist.client.lifecycle.start import (
    OWNERS,
    EarlierNotice,
    OnProgress,
    Started,
    complete,
    launch,
    make_settings,
    this_notebook,
)
from jdist.client.link import Link, new_request
from jdist.client.remote.host import remote_host
from jdist.client.remote.requests import Known
from jdist.client.sync import SyncedCode
from jdist.core.errors import ConnectionLost, JdistError, LaunchError, Remedy
from jdist.core.messages.base import Message
from jdist.core.messages.status import (
    OBSERVER,
    Notice,
    Origin,
    SetOrigin,
    StatusReport,
    StatusRequest,
    StopCluster,
    Stopped,
)
from jdist.core.ranks import RankSet
from jdist.core.settings import Settings
from jdist.launch.base import Launcher
from jdist.wire.processes import has_ended
from jdist.wire.transport.keys import Connection
from jdist.wire.values.segments import sweep_handed_over

_STOP_TIMEOUT = 15.0
_ORIGIN_TIMEOUT = 5.0
_AGENTS_BACK = 15.0  # Seconds for agents to reconnect and the world to form; then the client attaches anyway.


class ClusterLifecycle:
    """The part of a cluster that begins and ends one client's attachment."""

    def __init__(self, attachment: Attachment, code: SyncedCode | None = None) -> None:
        self._attachment = attachment
        self._code = code  # Its syncing ends before the attachment does.
        attachment.route(self._watch_for_death)
        self.launcher: Launcher | None = None  # The launcher of the cluster's start, if this client started it.
        self.added: list[Launcher] = []  # The launchers of nodes that this client added.
        self._kind = "python"
        self._may_revive = False  # The world was formed and the client is attached: restart a dead controller.
        self._is_origin = False  # The cluster is recorded as this notebook's own.
        self._reviving: asyncio.Task[None] | None = None  # Starts the controller again; all who wait share it.
        self.site: Site = LocalSite()
        self._known: Known | None = None  # What its host knew of the cluster when this client attached.
        self._unwatch: Callable[[], None] = lambda: None
        self._is_stopping = False  # This client ends the cluster, and asks its site what is left.
        self._checking: asyncio.Task[None] | None = None  # Looks whether the controller has survived a break.

    @contextlib.asynccontextmanager
    async def starting(
        self, settings: Settings, kind: str, timeout: float | None, on_progress: OnProgress
    ) -> AsyncIterator[None]:
        """Launch a cluster and form its world, for the ``with`` block to examine; it ends again if that fails."""
        async with self.launching(settings, kind, on_progress) as started:
            await started.wait_formed(timeout, on_progress)
            await started.launcher.release()
            await self._set_origin(this_notebook())
            self._is_origin = True
            yield

    @contextlib.asynccontextmanager
    async def launching(self, settings: Settings, kind: str, on_progress: OnProgress) -> AsyncIterator[Started]:
        """Launch a cluster, for the ``with`` block to wait for. What was launched is ended again when that fails."""
        started = await launch(settings, self._attachment.receive, kind)
        self._adopt(started.link)
        self.launcher = started.launcher
        unwatch = self._attachment.watch(lambda m: on_progress(m) if isinstance(m, Notice) else None)
        try:
            yield started
        except BaseException:
            try:
                await self.stop()
            finally:
                await started.launcher.end()
            raise
        finally:
            unwatch()
        self._kind = kind
        self._may_revive = True

    async def attach(self, name: str | None, kind: str, at: str = "") -> None:
        """Attach to a cluster by name, and start its controller again if it has died; ``at``: the host behind ssh."""
        self._kind = kind
        host, local = split_name(name, at)
        self.site = site_of(host)
        await self.site.open()
        try:
            self._known = known = await self.site.find(local)
            self._adopt(await self._open_link(known.connection))
            if self.site.host is not None:
                self._unwatch = self.site.host.watch(self._tell_of_break)
            self._may_revive = True
            if known.origin is not None:
                own = this_notebook()
                is_its_own = own is not None and own.is_of_same_notebook(known.origin)
                await self._set_origin(own if is_its_own else replace(known.origin, is_shared=True))
                self._is_origin = is_its_own
        except BaseException:
            self._release()
            raise

    async def start_at(self, at: str, words: Sequence[str], name: str, kind: str, on_progress: OnProgress) -> None:
        """Start a cluster on another host, as ``jdist start`` with these words does there, and attach to it.

        The start goes on there if the connection breaks. Raises UsageError, LaunchError.
        """
        site = RemoteSite(remote_host(at))
        await site.open()
        try:
            name = await site.start(words, name, on_progress)
            await self.attach(name, kind, at)
        finally:
            site.close()
        self._is_origin = True
        try:
            await self._set_origin(this_notebook())
        except BaseException:
            self._release()
            raise

    def _tell_of_break(self) -> None:
        """Say that the connection to the cluster's host has broken, or is back, which ends nothing there."""
        host, link = self.site.host, self._attachment.current
        if host is None or link is None or link.lost:
            return
        if host.is_away:
            text = f"the connection to {host.name} broke; runs there go on, and their output follows once it is back"
        elif host.state != "open":
            return
        else:
            text = f"the connection to {host.name} is back after {time.time() - host.away_since:.0f} s"
            self._checking = asyncio.ensure_future(self._check_controller(link))
        self._attachment.notify(Notice(text))

    async def _check_controller(self, link: Link) -> None:
        """See whether the controller has died during a break, in which nothing could tell of that."""
        with contextlib.suppress(JdistError, TimeoutError):
            if await self.site.seconds_left(link.connection) > 0:
                link.end_orphaned()

    async def _open_link(self, connection: Connection, *, is_dead: bool = False) -> Link:
        """A link to the cluster; its controller is started again if it has died. Raises ConnectionLost, LaunchError."""
        reached = await self.site.revive(connection, is_dead=is_dead)
        link = Link(reached.connection, self._attachment.receive)
        link.host = self.site.host
        await link.open(self._kind)
        if reached.is_new:
            try:
                with contextlib.suppress(TimeoutError, LaunchError):  # status shows what is missing
                    await link.wait_ready(_AGENTS_BACK)
            except BaseException:
                link.close()
                raise
        return link

    async def observe(self, connection: Connection) -> None:
        """Attach as an observer, through its host's login if it is one of another host. Raises ConnectionLost."""
        host, local = split_name(connection.name)
        self.site = site_of(host)
        await self.site.open()
        try:
            if host:
                self._known = known = await self.site.find(local)
                if known.connection.cluster != connection.cluster:
                    raise ConnectionLost(f"cluster {connection.name} is another one now")
                connection = known.connection
            link = Link(connection, self._attachment.receive)
            link.host = self.site.host
            await link.open(OBSERVER)
        except BaseException:
            self.site.close()
            raise
        self._attachment.adopt(link)

    async def _set_origin(self, origin: Origin | None) -> None:
        """Record that the cluster belongs to this notebook, or to none. Clients that only look in change nothing."""
        link = self._attachment.link
        if self._kind in OWNERS and not link.lost:
            with contextlib.suppress(ConnectionLost):
                await link.query((), SetOrigin(origin), _ORIGIN_TIMEOUT)

    def _adopt(self, link: Link) -> None:
        self._attachment.adopt(link)
        link.successor = partial(self._succeed, link)

    async def revived(self) -> None:
        """If the controller has died, have it started again; returns when that is over, whether or not it succeeded."""
        if (link := self._attachment.current) is not None:
            with contextlib.suppress(ConnectionLost):
                await link.current()

    async def _succeed(self, lost: Link) -> Link:
        """The link that replaces one whose controller died. Raises ConnectionLost.

        An attempt to start the controller again begins when its death is noticed. Whoever needs the cluster waits for
        that attempt, or makes another one if it has failed.
        """
        if not self._may_revive:
            raise lost.loss()
        if self._attachment.current is lost:
            await asyncio.wait([self._begin_revival(lost)])
        link = self._attachment.current
        if link is None or link is lost:
            raise lost.loss()
        return await link.current()

    def _begin_revival(self, lost: Link) -> asyncio.Task[None]:
        if self._reviving is None or self._reviving.done():
            self._reviving = asyncio.get_running_loop().create_task(self._revive(lost))
        return self._reviving

    async def detach(self) -> None:
        """Leave the cluster running and close this client."""
        await self._end_syncing()
        await self._part()

    async def _end_syncing(self) -> None:
        if self._code is not None:
            await self._code.close()

    async def _part(self) -> None:
        self._may_revive = False
        try:
            if self._is_origin and not (self.site.host is not None and self.site.host.is_away):
                await self._set_origin(None)  # the user leaves it running on purpose
        finally:
            self._release()

    def _release(self) -> None:
        """Close the attachment, and end the use of its site; may be called again."""
        self._may_revive = False
        for task in (self._reviving, self._checking):
            if task is not None:
                task.cancel()
        self._unwatch()
        self._unwatch = lambda: None
        self._attachment.close()
        self.site.close()

    async def stop(self, *, now: bool = False) -> None:
        """End the cluster: no process, port, socket file or shared memory is left. Raises LaunchError.

        Ranks end side by side, as a kernel does: cells are interrupted, threads finish, exit functions run. What takes
        longer than ``end_grace`` seconds is cut off, and watchers get a Notice that says what. ``now``: kill them.
        """
        if self.site.host is not None and self._attachment.current is not None:
            await self.site.host.wait_open()
        await self._end_syncing()
        await self.revived()
        link = self._attachment.current
        if link is None:
            return
        settings = self.settings  # the controller removes them
        if link.is_dropped:
            try:
                dropped, link = link, await self._open_link(link.connection)
            except ConnectionLost:
                if not find.has_ended_here(link.connection):
                    raise
            else:
                dropped.close()
                self._adopt(link)
        self._is_stopping = True
        if not link.lost:
            try:
                link = await self._end_controller(link, settings, now=now)
                await self.site.wait_removed(link.connection)
            except TimeoutError:
                raise LaunchError(
                    f"cluster {link.connection.name} did not confirm its end within {_STOP_TIMEOUT:.0f} s; its "
                    f"controller is pid {link.connection.pid} on {link.connection.hostname}"
                ) from None
        try:
            for launcher in filter(None, (self.launcher, *self.added)):
                await launcher.end()
            if self.launcher is not None:
                await self.launcher.remove_leftovers()
            elif settings is not None:  # another client has launched the cluster
                await self.site.remove_leftovers(settings)
        finally:
            await self._part()

    async def _end_controller(self, link: Link, settings: Settings | None, *, now: bool) -> Link:
        """Tell the controller to end the cluster, and the one that is started in its place if it dies meanwhile.

        Returns the link to the one that has ended. Raises TimeoutError.
        """
        while True:
            link.send(StopCluster(now))
            await link.wait_lost(_STOP_TIMEOUT + (0.0 if settings is None else settings.end_grace))
            if not link.may_be_replaced:
                return link
            try:
                link = await link.current()
            except ConnectionLost:  # it cannot be started again
                return link

    @property
    def remote_site(self) -> RemoteSite:
        """The site of a cluster at another host."""
        assert isinstance(self.site, RemoteSite)
        return self.site

    @property
    def settings(self) -> Settings | None:
        """The settings that the cluster was started with, if they are known at its site."""
        if self.site.host is not None:
            return None if self._known is None else self._known.settings
        charter = find.charter_of(self._attachment.link.connection)
        return None if charter is None else charter.settings

    def _watch_for_death(self, message: Message) -> None:
        """Start a controller that has died again at once, until this client detaches."""
        link = self._attachment.current
        if not isinstance(message, Stopped) or link is None:
            return
        if link.is_orphaned and self._may_revive:
            self._begin_revival(link)
        elif not link.is_dropped and not self._is_stopping:
            asyncio.get_running_loop().call_soon(self.site.close)  # it has ended, and this client did not end it

    async def _revive(self, lost: Link) -> None:
        """Start the controller again, unless another client was first and its controller has the port, and attach.

        The new controller tells all clients that it was started again.
        """
        lost.close()
        try:
            link = await self._open_link(lost.connection, is_dead=True)
            sweep_handed_over(lost.connection.cluster)
            self._adopt(link)
        except (JdistError, OSError) as e:
            is_final = await self._is_final(lost.connection)
            reason = e.message if isinstance(e, JdistError) else str(e)
            lost.give_up(f"its controller is gone and could not be started again: {reason}", is_final=is_final)
            if is_final:
                self._attachment.close()
                self.site.close()
            self._attachment.notify(Stopped(lost.lost, lost.remedies))

    async def _is_final(self, connection: Connection) -> bool:
        """Whether the controller cannot be started again any more."""
        try:
            return await self.site.seconds_left(connection) <= 0
        except (JdistError, TimeoutError):
            return False  # its host cannot be reached


# ---------------------------------------------------------------- clusters of earlier kernels


KEEP = "JDIST_KEEP"  # The environment's variable for those who want such clusters to be kept.
_KIND = "start"
_CHOSEN_BY_JDIST = re.compile(r"c[0-9]+")


class EarlierCluster:
    """A cluster that an earlier kernel of this notebook has left, attached to."""

    def __init__(self, name: str, origin: Origin, lifecycle: ClusterLifecycle, report: StatusReport):
        self.name = name
        self._origin = origin
        self._lifecycle = lifecycle
        self._report = report

    @property
    def use(self) -> str:
        """What speaks against its end, in words; "" if it is idle and no other program uses it."""
        runs = [
            f"run {number} is {state} on rank{'s' * (len(ranks) != 1)} {RankSet(ranks)}"
            for number, state, ranks, _ in self._report.runs
        ]
        others = len(self._report.clients) - 1
        attached = [f"{others} other client{'s are' if others > 1 else ' is'} attached"] if others > 0 else []
        shared = ["another program has used it"] if self._origin.is_shared and not attached else []
        return " and ".join(runs[:1] + attached + shared)

    async def end(self) -> EarlierNotice:
        """Stop it, so that its ranks end as a kernel does; says so."""
        await self._lifecycle.stop()
        was = "has been" if self.use else "was idle and has been"
        text = f"cluster {self.name} of an earlier kernel of this notebook {was} stopped"
        return EarlierNotice(text, remedies=(Remedy("start", "keep such a cluster", name="--keep"),))

    async def leave(self) -> EarlierNotice:
        """Leave it running; says how to use it or end it. May be called again."""
        await self._lifecycle.detach()
        return _left(self.name, f"runs on: {self.use}")


async def find_earlier(
    settings: Settings, *, is_named: bool, at: str = ""
) -> tuple[list[EarlierCluster], list[EarlierNotice]]:
    """Clusters that an earlier kernel started with these settings, and notices of others that it left.

    ``is_named``: the name is one of the options; else jdist has chosen it, and any such name will do.
    """
    own = this_notebook()
    found: list[EarlierCluster] = []
    notices: list[EarlierNotice] = []
    async with using(site_of(at)) as site:
        known = await site.clusters() if own is not None else {}
    for name, cluster in known.items():
        origin = cluster.origin if cluster.is_here else None
        if own is None or origin is None or cluster.settings is None or not own.is_of_same_notebook(origin):
            continue
        if origin.pid == own.pid or not has_ended(origin.pid, origin.started):
            continue
        if not is_same_start(settings, cluster.settings, is_named=is_named, at=at):
            notices.append(_left(name, "runs on: it was started with other options"))
            continue
        attachment = Attachment()
        lifecycle = ClusterLifecycle(attachment)
        try:
            await lifecycle.attach(name, _KIND)
            report = await attachment.link.request(StatusRequest(new_request()), StatusReport)
        except JdistError as e:
            await lifecycle.detach()
            notices.append(_left(name, f"could not be asked what it does: {e.message}"))
        else:
            found.append(EarlierCluster(name, origin, lifecycle, report))
    return found, notices


def is_same_start(new: Settings, old: Settings, *, is_named: bool, at: str = "") -> bool:
    """Whether both settings are of starts with the same options. Raises UsageError, LaunchError.

    Of a start at another host, only the options that are given now are compared: what they leave open, the launcher
    there has found out.
    """
    is_same_name = new.name == old.name if is_named else _CHOSEN_BY_JDIST.fullmatch(old.name) is not None
    if at:
        default = asdict(make_settings(None, None, new.name))
        given = {name for name, value in asdict(new).items() if value != default[name]}
        return is_same_name and all(getattr(new, name) == getattr(old, name) for name in given - {"env", "name"})
    return is_same_name and replace(complete(new), name=old.name) == old


def _left(name: str, why: str) -> EarlierNotice:
    remedies = (Remedy("attach", "use it", name=name), Remedy("stop", "end it", name=name))
    return EarlierNotice(f"cluster {name} of an earlier kernel of this notebook {why}", remedies=remedies)


def keeps(keep: bool | None) -> bool:
    """Whether clusters of an earlier kernel are left alone: as the user says, else as the environment does."""
    return os.environ.get(KEEP, "").lower() not in ("", "0", "false", "no") if keep is None else keep


async def end_earlier(settings: Settings, on_progress: OnProgress, *, is_named: bool, keep: bool | None) -> None:
    """Stop what an earlier kernel has left unused, before a start; say so, and what is left running."""
    if keeps(keep):
        return
    found, notices = await find_earlier(settings, is_named=is_named)
    for notice in notices:
        on_progress(notice)
    try:
        for earlier in found:
            on_progress(await (earlier.leave() if earlier.use else earlier.end()))
    finally:
        for earlier in found:
            await earlier.leave()
