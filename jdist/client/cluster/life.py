"""Life: a cluster is started or attached to, outlives its controller, and is let go of or ended."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from jdist.client import find
from jdist.client.cluster.cells import Cells
from jdist.client.doctor.collect import examine_briefly
from jdist.client.doctor.diagnosis import Finding
from jdist.client.lifecycle import revive
from jdist.client.lifecycle import start as starting
from jdist.client.link import Link
from jdist.core.errors import JdistError, LaunchError, ProtocolError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.runs import InputRequest
from jdist.core.messages.status import OBSERVER, ClusterFacts, Notice, RunsChanged, StopCluster, Stopped
from jdist.core.remedy import Remedy
from jdist.core.settings import Host, OnDeath, Settings
from jdist.core.topology import parse_nproc
from jdist.launch.base import Launcher, Plan, find_launcher
from jdist.launch.hosts import parse_hosts
from jdist.wire.transport.keys import Charter, Connection, connection_path, read_connection
from jdist.wire.values.segments import sweep_handed_over

_STOP_TIMEOUT = 15.0


class Life(Cells):
    """A cluster from its start, or this client's attaching to it, to its end."""

    def __init__(self) -> None:
        super().__init__()
        self._launcher: Launcher | None = None
        self._added: list[Launcher] = []
        """Those of the nodes that were added from here."""
        self._kind = "python"
        self._may_revive = False
        """Formed once and not let go of: if the controller dies now, another is started."""
        self._reviving: asyncio.Task[None] | None = None
        self._orphan: Link | None = None
        """The link that it is for."""
        self.start_seconds = 0.0
        """From the call of start to the formed world."""
        self.warnings: tuple[Finding, ...] = ()
        """What a short examination at the start has found; :meth:`doctor` looks closer."""

    @classmethod
    async def start(  # noqa: PLR0913 — the options of a start, by name
        cls,
        nproc_per_node: int | str | Sequence[int] | None = None,
        nnodes: int | None = None,
        *,
        backend: str | None = None,
        init_method: str = "env://",
        launcher: str = "local",
        name: str | None = None,
        timeout: float | None = None,
        fork: bool = True,
        on_death: OnDeath = "replace",
        warm: bool = True,
        launcher_args: Sequence[str] = (),
        hosts: str | Sequence[Host] = (),
        env: Mapping[str, str] | None = None,
        min_nodes: int = 0,
        bind_host: str = "",
        kind: str = "python",
        on_progress: Callable[[starting.Progress], None] | None = None,
        **limits: float,
    ) -> Self:
        """Start a cluster and form its world.

        Parameters
        ----------
        nproc_per_node : ranks per node: a number, or one per node ("2,1"). Default: one per GPU, else 2.
        nnodes : number of nodes. Default: as the launcher finds them (``hosts``, an allocation), else 1.
        backend : "gloo", "nccl" or "mpi". Default: nccl, with gloo for CPU tensors, if every rank has a GPU; else gloo.
        init_method : "env://", "tcp://HOST:PORT" or "file:///PATH", for the world's rendezvous.
        timeout : seconds to wait for the world; None waits for missing nodes as long as it takes.
        fork : fork workers from one process per node that imported torch; False starts fresh interpreters.
        on_death : what follows a rank's death. "replace": a fresh process takes its place; "wait": the place stays
            empty until :meth:`restart`; "stop": the cluster is stopped.
        warm : while a node is idle, import what its next workers' first optimizer would (torch._dynamo, 1 to 2 s).
        hosts : for ssh and mpi: "a:2,b:2", or what :func:`jdist.launch.hosts.read_hostfile` gives.
        env : variables for every node's agent, and with it for the ranks.
        min_nodes : form the world with as many if the others cannot be had; 0: all are needed.
        bind_host : the address of this host at which nodes reach the controller. Default: any that it has.
        on_progress : hears of nodes that come or are refused, and of what the launcher waits for. Default: the
            last is written to standard error.
        limits : seconds, by name, as in :class:`jdist.core.settings.Settings` (idle_timeout, interrupt_grace, …).

        Raises UsageError, LaunchError; what was started is ended again.
        """
        began = time.monotonic()
        if nnodes is not None and nnodes < 1:
            raise UsageError(f"--nnodes {nnodes}: a cluster has at least one node")
        counts = _nproc(nproc_per_node, nnodes or 1)
        try:
            settings = Settings(
                name=name or find.free_name(),
                nnodes=nnodes or (len(counts) if len(counts) > 1 else 0),
                nproc_per_node=counts,
                backend=backend or "",
                init_method=init_method,
                launcher=launcher,
                launcher_args=tuple(launcher_args),
                hosts=parse_hosts(hosts) if isinstance(hosts, str) and hosts else tuple(hosts),  # type: ignore[arg-type]
                env=tuple((env or {}).items()),
                min_nodes=min_nodes,
                bind_host=bind_host,
                fork=fork,
                on_death=on_death,
                warm=warm,
                **limits,  # type: ignore[arg-type]
            )
        except TypeError as e:
            raise UsageError(f"start: {e}") from None
        self = cls()
        started = await starting.launch(settings, self._on_event, kind)
        self._adopt(started.link)
        self._launcher = started.launcher
        tell = on_progress or _write
        end_watch = self.watch(lambda m: tell(m) if isinstance(m, Notice) else None)
        try:
            await self._wait(started, timeout, tell)
        except BaseException:
            try:
                await self.stop()
            finally:
                await started.launcher.end()
            raise
        finally:
            end_watch()
        self.start_seconds = time.monotonic() - began
        self._kind = kind
        self._may_revive = True
        return self

    async def _wait(
        self, started: starting.Started, timeout: float | None, tell: Callable[[starting.Progress], None]
    ) -> None:
        """Until what was started is what was wanted: a world that is formed, and lives on. Raises LaunchError."""
        await starting.wait_formed(started, timeout, tell)
        await started.launcher.let_go()
        self.warnings = (await examine_briefly(self.link, self.facts)).findings
        for finding in self.warnings:
            self._tell(Notice(f"⚠ {finding.text}", remedies=(Remedy("doctor", "look closer"),)))

    @classmethod
    async def attach(cls, name: str | None = None, *, kind: str = "python") -> Self:
        """The cluster called ``name``, or the newest one. Raises UsageError, ConnectionLost, LaunchError.

        If its controller has died, it is started again: the agents keep the ranks for the agent grace.
        """
        self = cls()
        self._kind = kind
        self._adopt(await revive.attach(find.find(name), self._on_event, kind))
        self._may_revive = True
        return self

    @classmethod
    async def observe(cls, connection: Connection) -> Self:
        """The cluster at ``connection``, for one who looks on: that neither keeps it from its idle end nor revives it.

        Watchers hear Moved when a run begins or ends, or has another verdict. Raises ConnectionLost, ProtocolError.
        """
        self = cls()
        self._kind = OBSERVER
        link = Link(connection, self._on_event)
        await link.open(OBSERVER)
        self._adopt(link)
        return self

    async def _revive(self, lost: Link) -> None:
        """Start the controller again and attach to it, as the same cluster."""
        name = lost.connection.name
        self._tell(Notice(f"the controller of cluster {name} is gone; it is being started again, every name is kept"))
        if self._carrier is not None:
            self._carrier.close()
        lost.close()
        try:
            link = await revive.attach(lost.connection, self._on_event, self._kind, is_dead=True)
            sweep_handed_over(lost.connection.cluster)
            self._adopt(link)
        except (JdistError, OSError) as e:
            self._tell(Notice(f"the controller of cluster {name} could not be started again: {e}"))

    async def revived(self) -> None:
        """Until a revival that is underway is over, well or not."""
        if self._reviving is not None:
            await asyncio.wait([self._reviving])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def detach(self) -> None:
        """Leave the cluster running and close this client."""
        self._may_revive = False
        if self._reviving is not None:
            self._reviving.cancel()
        if self._carrier is not None:
            self._carrier.close()
        if self._link is not None:
            self._link.close()

    async def _settled(self) -> None:
        """Until nodes that have come have what this client has brought to the others."""

    async def stop(self) -> None:
        """End the cluster: no process, port, socket file or shared memory is left."""
        await self.revived()
        link = self._link
        if link is None:
            return
        charter = find.charter_of(link.connection)  # while it is there
        if not link.lost:
            link.send(StopCluster())
            try:
                await link.wait_lost(_STOP_TIMEOUT)
                await _wait_removed(link)
            except TimeoutError:
                raise LaunchError(
                    f"cluster {self.name} did not confirm its end within {_STOP_TIMEOUT:.0f} s; its controller is pid "
                    f"{link.connection.pid} on {link.connection.host}"
                ) from None
        await self.detach()
        await self._see_off(charter)

    async def _see_off(self, charter: Charter | None) -> None:
        """Nothing is left of what launchers started, whoever of the clients it was that did."""
        for launcher in filter(None, (self._launcher, *self._added)):
            await launcher.end()
        if self._launcher is not None:
            await self._launcher.clear()
        elif charter is not None:
            plan = Plan(charter.settings, str(find.directory() / f"jdist-{charter.settings.name}.log"))
            await find_launcher(charter.settings.launcher)(plan).clear()

    def _on_event(self, message: Message) -> None:
        match message:
            case Stopped():
                self._on_stopped(message)
            case Notice() if message.run:
                self._underway.hear(message)
            case _:
                self._underway.hear(message)
                if isinstance(message, Notice | ClusterFacts | InputRequest | RunsChanged):
                    self._tell(message)

    def _on_stopped(self, message: Stopped) -> None:
        """The runs end; a controller that died, and was not let go of, is started again, once for each link."""
        orphan = self._link if self._link is not None and self._link.is_orphaned else None
        if orphan is not None:
            message = Stopped(message.reason, orphan.remedies)
        self._underway.hear(message)
        if orphan is not None and self._may_revive and orphan is not self._orphan:
            self._orphan = orphan
            self._reviving = asyncio.get_running_loop().create_task(self._revive(orphan))
        self._tell(message)


def _write(progress: starting.Progress) -> None:
    if isinstance(progress, starting.Waiting) and progress.text:
        print(progress.text, file=sys.stderr)


def _nproc(given: int | str | Sequence[int] | None, nnodes: int) -> tuple[int, ...]:
    if given is None:
        return ()
    text = given if isinstance(given, str) else str(given) if isinstance(given, int) else ",".join(map(str, given))
    return parse_nproc(text, nnodes)


async def _wait_removed(link: Link) -> None:
    """Until the controller has removed its connection file, the last thing it does."""
    path = connection_path(find.directory(), link.connection.name)
    async with asyncio.timeout(_STOP_TIMEOUT):
        while _is_same(path, link):  # noqa: ASYNC110 — nothing wakes a waiter when another's child ends
            await asyncio.sleep(0.01)


def _is_same(path: Path, link: Link) -> bool:
    try:
        return read_connection(path).cluster == link.connection.cluster
    except (OSError, ProtocolError):
        return False
