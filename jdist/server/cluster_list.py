"""List this user's clusters, follow each, and send a browser what has changed.

Each cluster has a follower, through which it can also be asked and changed. The followers live on the client's loop, in
a thread of its own, so a cluster that hangs never blocks the server. An event contains only what is new, and a cluster
has at most two events a second. Those of other hosts are followed while pages look at them (remote_hosts.py).
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from jdist.client import find
from jdist.client.cluster import AsyncCluster
from jdist.client.follow import RETRY_AFTER, ClusterFollower, Observations, watched_pause
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
from jdist.client.lifecycle.sites import split_name
from jdist.client.remote.host import RemoteHost
from jdist.client.remote.requests import Known
from jdist.core.errors import ConnectionLost, ProtocolError, UsageError
from jdist.core.messages.status import Notice, StatusReport
from jdist.server.remote_hosts import FollowedHost, RemoteHosts
from jdist.server.snapshots import AddingOptions, ClusterSnapshot, RankRow, redacted, snapshot_of, summary_of
from jdist.server.starts import KIND, LOCAL, NodeAdder, PendingStarts, Policy, read_arguments
from jdist.wire.transport.keys import Connection

INTERVAL = 0.5  # Seconds between two events about one cluster at least.


class ClusterEvent(Struct, frozen=True):
    """An event as events.yaml describes it."""

    action: Literal["changed", "gone"]
    name: str
    cluster: ClusterSnapshot
    ranks: tuple[RankRow, ...]
    notices: list[str]


class _Cluster(Struct):
    """What is to be sent of one cluster, and what has been."""

    sent: ClusterSnapshot | None = None
    sent_at: float = -INTERVAL
    notices: list[str] = []
    is_forced: bool = False
    due: asyncio.TimerHandle | None = None


class EventFeed:
    """Emits events about clusters. ``snapshot_of`` gives one by name, None if there is none. On the client's loop."""

    def __init__(self, snapshot_of: Callable[[str], ClusterSnapshot | None], emit: Callable[[ClusterEvent], None]):
        self._snapshot_of = snapshot_of
        self._emit = emit
        self._clusters: dict[str, _Cluster] = defaultdict(_Cluster)

    @property
    def names(self) -> set[str]:
        """Clusters about which a browser knows."""
        return {name for name, cluster in self._clusters.items() if cluster.sent is not None}

    def update(self, name: str, is_forced: bool = False, notice: str = "") -> None:
        """The cluster may have changed. ``is_forced``: send an event even if it has not."""
        cluster = self._clusters[name]
        if notice:
            cluster.notices.append(redacted(notice))
        cluster.is_forced |= is_forced
        if cluster.due is None:
            loop = asyncio.get_running_loop()
            cluster.due = loop.call_later(max(0.0, cluster.sent_at + INTERVAL - loop.time()), self._send, name)

    def close(self) -> None:
        """Send nothing more."""
        for cluster in self._clusters.values():
            if cluster.due is not None:
                cluster.due.cancel()

    def _send(self, name: str) -> None:
        last, now = self._clusters[name], self._snapshot_of(name)
        before, notices = last.sent, last.notices
        cluster = self._clusters[name] = _Cluster(now, last.sent_at)
        is_new = before is not now if now is None or before is None else now.timeless() != before.timeless()
        if not (is_new or notices or (last.is_forced and now is not None)):
            return
        cluster.sent_at = asyncio.get_running_loop().time()
        shown = (now or before or ClusterSnapshot(name=name)).without_ranks()
        rows = () if now is None else now.changed_rows(before)
        self._emit(ClusterEvent("gone" if now is None else "changed", name, shown, rows, notices))


T = TypeVar("T")

_GLANCE = 0.5  # Seconds between two looks at the directory's time; nothing reports a change there.
_RESCAN = 2.0  # Seconds until it is read again, while a cluster in it cannot be attached to.
_IDLE_PAUSE = 10.0  # Seconds between polls while nothing changes, to notice a controller that hangs.
_WATCHED_PAUSE = 2.0  # The same while a browser listens.
_ORPHANED = "its controller is gone; while its ranks wait for another, it can be started again with every name kept"


class BrowserFollower(ClusterFollower):
    """Keeps the snapshot of one cluster up to date for browsers, and calls ``update(name, is_forced, notice)``.

    ``is_watched`` says whether a browser listens; ``on_running`` is called as long as cells run. ``host``: where the
    cluster is, if that is behind ssh. It is shown as reconnecting while the login there is broken.
    """

    def __init__(
        self,
        connection: Connection,
        update: Callable[[str, bool, str], None],
        is_watched: Callable[[], bool],
        on_running: Callable[[], None],
        host: RemoteHost | None = None,
    ):
        self._connection = connection
        self._host = host
        self._unwatch: Callable[[], None] = host.watch(self._handle_login) if host is not None else lambda: None
        self._update = update
        self._is_watched = is_watched
        self._on_running = on_running
        self.is_over = False  # The cluster is gone, or its controller has died.
        self._answered_at: float | None = None  # Time of the last report, on the loop's clock.
        self.snapshot = summary_of(connection, "connecting" if host else "silent", "it has not answered yet")
        super().__init__()

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def world_size(self) -> int:
        """Its ranks, as far as is known."""
        return self.snapshot.world_size or 0

    @property
    def aged_snapshot(self) -> ClusterSnapshot:
        """The snapshot; that of a cluster which does not answer any more says since when."""
        if self._host is not None and self._host.is_away:
            age = round(max(0.0, time.time() - self._host.away_since), 1)
            return replace(self.snapshot, state="reconnecting", reason=self._host.problem, age=age)
        if self.snapshot.state != "silent" or self._answered_at is None:
            return self.snapshot
        return replace(self.snapshot, age=round(asyncio.get_running_loop().time() - self._answered_at, 1))

    async def detail(self) -> ClusterSnapshot:
        """All that can be known now, within some seconds."""
        if self.observer is None or self.observer.link.lost or (self._host is not None and self._host.is_away):
            return self.aged_snapshot
        try:
            self._take(*await self.poll(self.observer, lambda _: True))
        except (TimeoutError, ConnectionLost) as e:
            self.handle_silence(e)
        self._update(self._connection.name, False, "")  # else the next event would leave out what only this one saw
        return self.aged_snapshot

    def _take(self, report: StatusReport, observations: Observations) -> None:
        self.snapshot = snapshot_of(report, observations, self.snapshot)
        self._answered_at = asyncio.get_running_loop().time()

    def wants_observations(self, report: StatusReport) -> bool:
        """While cells run, just after, and until each rank has reported its device; only for a browser that listens."""
        is_new = bool(self.snapshot.runs) or not all(row.device for row in self.snapshot.rows)
        return (bool(report.runs) or is_new) and self._is_watched()

    def handle_report(self, report: StatusReport, observations: Observations) -> None:
        self._take(report, observations)
        if any(state != "queued" for _, state, _, _ in report.runs):
            self._on_running()
        self._update(self._connection.name, self.has_changed, "")

    def handle_notice(self, notice: Notice) -> None:
        self._update(self._connection.name, True, str(notice))

    def _handle_login(self) -> None:
        """The login to the host has broken, or is back."""
        self.poll_now()
        self._update(self._connection.name, False, "")

    def handle_silence(self, error: Exception) -> None:
        if self._host is not None:
            self._probing = asyncio.ensure_future(self._host.probe())  # it may be the login that is silent
        who = f"its controller (process {self._connection.pid})"
        if isinstance(error, ProtocolError):
            self.snapshot = summary_of(self._connection, "foreign", str(error))
        elif self.observer is None:
            self.snapshot = summary_of(self._connection, "silent", f"{who} does not answer")
        else:
            self.snapshot = replace(self.snapshot, state="silent", reason=f"{who} does not answer")
        self._update(self._connection.name, False, "")

    async def attaches_again(self) -> bool:
        """Whether to try again: only with a controller that has not answered yet.

        For one that is started again, another follower is made. A cluster of another host is looked up there again.
        """
        self.is_over = self.was_attached or (self._host is not None and self.snapshot.state != "foreign")
        self._update(self._connection.name, False, "")
        return not self.is_over and self.snapshot.state != "foreign"

    def pause(self) -> float:
        if self.snapshot.state == "silent":
            return RETRY_AFTER
        if not self._is_watched():
            return _IDLE_PAUSE
        pause = watched_pause(self.world_size)  # a node that cannot be reached is described with the seconds since then
        return pause if self.snapshot.runs or self.snapshot.silences else max(pause, _WATCHED_PAUSE)

    async def close(self) -> None:
        self._unwatch()
        await super().close()


class ClusterList:
    """This user's clusters. ``emit`` gets events; ``is_watched`` and ``on_running`` are as in BrowserFollower."""

    def __init__(
        self,
        policy: Policy,
        emit: Callable[[ClusterEvent], None],
        is_watched: Callable[[], bool],
        on_running: Callable[[], None],
        log: logging.Logger,
    ):
        self.policy = policy
        self._log = log
        self._is_watched = is_watched
        self._on_running = on_running
        self._followers: dict[str, BrowserFollower] = {}
        self._others: dict[str, ClusterSnapshot] = {}  # Clusters that cannot be attached to.
        self._rescan = asyncio.Event()
        self._feed = EventFeed(self.snapshot, emit)
        self._starts = PendingStarts(self._handle_start, self._accept)
        self.elsewhere = RemoteHosts(self._adopt_at, self._starts.__contains__)
        self._adder = NodeAdder(lambda name, notice: self._feed.update(name, bool(notice), notice))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._following = asyncio.ensure_future(self._follow())
        self._following.add_done_callback(self._log_fault)

    def _log_fault(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("jdist: clusters are not followed any more", exc_info=error)

    # ------------------------------------------------------------ what there is

    def snapshot(self, name: str) -> ClusterSnapshot | None:
        """The cluster called ``name`` as it is now; None if there is none."""
        known = self._followers[name].aged_snapshot if name in self._followers else self._others.get(name)
        return self._adder.snapshot(name, self._starts.snapshot(name, known))

    async def list(self) -> list[ClusterSnapshot]:
        """All clusters, without their ranks."""
        names = sorted({*self._followers, *self._others, *self._starts.names})
        return [found.without_ranks() for name in names if (found := self.snapshot(name)) is not None]

    async def detail(self, name: str, *, may_log_in: bool = True) -> ClusterSnapshot | None:
        """All that can be known of a cluster now; None if there is none.

        Another host's is followed from now on; without ``may_log_in``, only on hosts where others have logged in.
        """
        if split_name(name)[0]:
            await self.elsewhere.look(name, may_log_in=may_log_in)
        if name not in self._followers:
            return self.snapshot(name)
        return self._adder.snapshot(name, self._starts.snapshot(name, await self._followers[name].detail()))

    async def ranks_here(self) -> int:
        """The number of ranks in all clusters together."""
        return sum(each.world_size for each in self._followers.values())

    # ------------------------------------------------------------ what can be done

    async def start(self, asked: dict[str, Any]) -> str:
        """Begin a start, and return the cluster's name. Raises UsageError, LaunchError."""
        arguments = self.policy.complete(asked, await self.ranks_here())
        at = arguments["at"]
        taken = set((await (await self.elsewhere.use(at).site()).clusters()) if at else await _names_here())
        name = await self._starts.begin(arguments, taken)
        if at:
            await self.elsewhere.look(name)
        return name

    async def instructions(self, name: str) -> str:
        """What the user has to do for nodes to join. It may contain the join line. Raises UsageError."""
        return self._adder.instructions(name) or self._starts.instructions(name)

    async def adding_options(self, name: str) -> AddingOptions:
        """The launcher by which the cluster was started, and how many ranks its last node has."""
        facts = self._observer(name).attachment.facts
        return AddingOptions(self._launcher_of(name), facts.nproc_per_node[-1], facts.backend)

    async def add_nodes(self, name: str, asked: Mapping[str, Any]) -> int:
        """Begin to add nodes to a cluster; the number by which that is known. Raises UsageError, ConnectionLost."""
        arguments, observer = read_arguments(asked), self._observer(name)
        launcher = self.policy.check_launcher(arguments.launcher or self._launcher_of(name))
        usual = observer.attachment.facts.nproc_per_node[-1]
        self.policy.check_ranks(await self.ranks_here() + arguments.count_ranks(usual))
        return self._adder.begin(name, observer, arguments, launcher)

    async def end_adding(self, name: str) -> None:
        """Cancel the adding of nodes that is under way; those that have joined stay."""
        await self._adder.end(name)

    def _launcher_of(self, name: str) -> str:
        settings = self._observer(name).part(ClusterLifecycle).settings
        return LOCAL if settings is None else settings.launcher

    def _observer(self, name: str) -> AsyncCluster:
        """Raises ConnectionLost if the cluster does not answer."""
        follower = self._followers.get(name)
        if follower is None or follower.observer is None or follower.observer.link.lost:
            shown = self.snapshot(name) or ClusterSnapshot(name=name, state="gone")
            raise ConnectionLost(f"cluster {name} is {shown.state}{f': {shown.reason}' if shown.reason else ''}")
        return follower.observer

    async def act(
        self,
        name: str,
        what: Callable[[AsyncCluster], Awaitable[T]],
        within: float,
        describe: Callable[[T], str] | None = None,
    ) -> T | None:
        """Do something with a cluster. Raises UsageError, ConnectionLost, LaunchError.

        Returns None if it has not ended after ``within`` seconds: it goes on, and an event reports its failure, or with
        ``describe`` its result.
        """
        task = asyncio.ensure_future(what(self._observer(name)))
        ended, _ = await asyncio.wait([task], timeout=within)
        if ended:
            return task.result()
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended_late(name, task, describe))
        return None

    def _ended_late(self, name: str, task: asyncio.Task[T], describe: Callable[[T], str] | None) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._log.info("jdist: cluster %s: %s: %s", name, type(error).__name__, error)
            self._feed.update(name, True, str(error))
        elif describe is not None:
            self._feed.update(name, True, describe(task.result()))

    async def stop(self, name: str, within: float) -> bool:
        """End a cluster or its start, or forget a failed one. False if it outlasts ``within`` s. Raises JdistError."""
        if name in self._starts:
            await self._starts.end(name)
            return True
        found = self.snapshot(name)
        if found is not None and found.state == "foreign":
            raise UsageError(
                f"cluster {name} was started by another version of jdist: stop it with that version's jdist stop {name}"
            )
        if found is not None and found.state == "orphaned":
            await (await AsyncCluster.attach(name, kind=KIND)).stop()
            has_ended = True
        else:
            has_ended = bool(await self.act(name, _stop, within))
        self._look_again(name)
        return has_ended

    async def revive(self, name: str) -> None:
        """Start the controller of a cluster again if it has died. Raises JdistError."""
        await (await AsyncCluster.attach(name, kind=KIND)).detach()
        self._look_again(name)

    async def close(self) -> None:
        """Detach from all clusters, which continue to run, and cancel the starts that are under way."""
        self._following.cancel()
        await asyncio.wait([self._following])
        await self._starts.close()
        await self._adder.close()
        self._feed.close()
        for task in self._tasks:
            task.cancel()
        for follower in self._followers.values():
            await follower.close()
        await self.elsewhere.close()

    # ------------------------------------------------------------ finding them

    async def _follow(self) -> None:
        """Look again when the directory changes, a follower has lost its cluster, or a cluster may be back."""
        while True:
            seen = await asyncio.to_thread(_changed_at)
            self._rescan.clear()
            try:
                running, others, is_settled = await asyncio.to_thread(_find)
                await self._adopt("", running, others)
            except OSError:  # a file that cannot be read now is read again
                is_settled = False
            except Exception:  # a fault of ours: the next look may succeed
                self._log.exception("jdist: could not look which clusters there are")
                is_settled = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if is_settled else _RESCAN):
                    while not self._rescan.is_set() and await asyncio.to_thread(_changed_at) == seen:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_GLANCE):
                                await self._rescan.wait()

    async def _adopt_at(self, used: FollowedHost, known: Mapping[str, Known]) -> None:
        """Follow the clusters of another host that run; show those that cannot be used, or not yet."""
        running = {name: each.connection for name, each in known.items() if not each.seconds_left}
        others = {n: summary_of(known[n].connection, "orphaned", _ORPHANED) for n in known.keys() - running.keys()}
        if used.problem or not used.has_login:
            state = "unreachable" if used.problem else "connecting"
            reason = redacted(used.problem or f"logging in to {used.host.name}")
            others = {n: ClusterSnapshot(name=n, state=state, reason=reason) for n in used.names}
        await self._adopt(used.host.name, running, others, used.host)

    async def _adopt(
        self,
        at: str,
        running: Mapping[str, Connection],
        others: dict[str, ClusterSnapshot],
        host: RemoteHost | None = None,
    ) -> None:
        """Follow the clusters of one host that run; show the others."""
        before = {name for name in {*self._followers, *self._others} if split_name(name)[0] == at}
        for name in {*running, *self._followers} & {*running, *before}:
            known, connection = self._followers.get(name), running.get(name)
            if known is not None and (known.is_over or not _is_same(known.connection, connection)):
                await self._followers.pop(name).close()
            if connection is not None and name not in self._followers:
                follower = BrowserFollower(connection, self._handle_update, self._is_watched, self._on_running, host)
                follower.add_done_callback(self._log_fault)
                self._followers[name] = follower
        self._others = {n: each for n, each in self._others.items() if n not in before} | others
        for name in {*self._feed.names, *self._followers, *self._others}:
            if split_name(name)[0] == at:
                self._feed.update(name)

    def _handle_update(self, name: str, is_forced: bool, notice: str) -> None:
        if name in self._followers and self._followers[name].is_over:
            self._look_again(name)
        self._feed.update(name, is_forced, notice)

    def _handle_start(self, name: str, notice: str) -> None:
        self._feed.update(name, False, notice)

    def _look_again(self, name: str) -> None:
        """Look which clusters there are where this one is."""
        self._rescan.set()
        self.elsewhere.list_again(name)

    async def _accept(self, name: str, world_size: int) -> None:
        """A start has succeeded: follow that cluster. Raises UsageError if more ranks run than are allowed."""
        others = sum(each.world_size for each in self._followers.values() if each.connection.name != name)
        self.policy.check_ranks(others + world_size)
        await self.elsewhere.wait_listed(name)


def _is_same(known: Connection, found: Connection | None) -> bool:
    """Whether both lead to the same controller; it may have been opened for other hosts since."""
    return found is not None and replace(found, addresses=known.addresses, public_port=known.public_port) == known


async def _names_here() -> dict[str, Connection]:
    """The names of this host's clusters that are taken."""
    return await asyncio.to_thread(lambda: find.connections() | find.restartable())


async def _stop(cluster: AsyncCluster) -> bool:
    await cluster.stop()
    return True


def _changed_at() -> int:
    """When the directory changed last; 0 if it does not exist."""
    try:
        return os.stat(find.directory()).st_mtime_ns
    except OSError:
        return 0


def _find() -> tuple[Mapping[str, Connection], dict[str, ClusterSnapshot], bool]:
    """Clusters that run, those that cannot be attached to, and whether only a change of the directory can add one."""
    running, restartable = find.connections(), find.restartable()
    others = {n: ClusterSnapshot(name=n, state="foreign", reason=why) for n, why in find.unreadable().items()}
    others |= {n: summary_of(connection, "orphaned", _ORPHANED) for n, connection in restartable.items()}
    there = {path.stem.removeprefix("jdist-") for path in find.directory().glob("jdist-*.json")}
    return running, others, not others and there <= running.keys()
