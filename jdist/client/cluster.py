"""Cluster and AsyncCluster: a cluster as a client uses it, blocking or in coroutines.

The parts that do the work share an :class:`~jdist.client.attachment.Attachment`. A :class:`Delegate` declares each
public method of a part once, for both classes, with its signature and docstring.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from msgspec.structs import replace

from jdist.client import find
from jdist.client.active_runs import ActiveRuns, script_cell
from jdist.client.attachment import Attachment, Ranks
from jdist.client.comms import RankComms
from jdist.client.debug import Debugging
from jdist.client.doctor.examine import examine_briefly
from jdist.client.doctor.findings import Finding
from jdist.client.history import History
from jdist.client.lifecycle.lifecycle import ClusterLifecycle, end_earlier
from jdist.client.lifecycle.nodes import Nodes
from jdist.client.lifecycle.sites import split_name
from jdist.client.lifecycle.start import Progress, make_settings, print_waiting, start_words
from jdist.client.link import Link
from jdist.client.metrics.logged import Metrics
from jdist.client.remote.host import choose_python
from jdist.client.reports import Reports
from jdist.client.run import CellRun
from jdist.client.session import NamedGroups, Saving
from jdist.client.sync import SyncedCode
from jdist.client.threads import bridge
from jdist.client.variables.carrier import Carrier
from jdist.client.variables.variables import Variables
from jdist.core.errors import Remedy
from jdist.core.messages.base import Message
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.profile import profile_options
from jdist.core.settings import Host, OnDeath
from jdist.core.topology import Mesh, Topology
from jdist.wire.transport.keys import Connection

if TYPE_CHECKING:
    from jdist.client.measure.profile import Profile

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Delegate(Generic[P, R]):
    """A method of a part of the cluster: a coroutine method of AsyncCluster, and a blocking method of Cluster."""

    def __init__(self, part: type[T], method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> None:
        @functools.wraps(method)
        async def asynchronous(cluster: "AsyncCluster", /, *args: P.args, **kwargs: P.kwargs) -> R:
            return await method(cluster.part(part), *args, **kwargs)

        @functools.wraps(method)
        def blocking(cluster: "Cluster", /, *args: P.args, **kwargs: P.kwargs) -> R:
            return bridge().call(asynchronous(cluster.asynchronous, *args, **kwargs))

        self._asynchronous = asynchronous
        self._blocking = blocking

    @overload
    def __get__(
        self, cluster: None, owner: "type[AsyncCluster]"
    ) -> "Callable[Concatenate[AsyncCluster, P], Coroutine[Any, Any, R]]": ...
    @overload
    def __get__(self, cluster: None, owner: "type[Cluster]") -> "Callable[Concatenate[Cluster, P], R]": ...
    @overload
    def __get__(self, cluster: "AsyncCluster", owner: object) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, cluster: "Cluster", owner: object) -> Callable[P, R]: ...
    def __get__(self, cluster: Any, owner: Any) -> Any:
        function = self._asynchronous if issubclass(owner, AsyncCluster) else self._blocking
        return function if cluster is None else MethodType(function, cluster)


class BaseCluster:
    """The methods and facts of a cluster that AsyncCluster and Cluster have in common, each declared once."""

    revived = Delegate(ClusterLifecycle, ClusterLifecycle.revived)
    detach = Delegate(ClusterLifecycle, ClusterLifecycle.detach)
    stop = Delegate(ClusterLifecycle, ClusterLifecycle.stop)

    run_async = Delegate(ActiveRuns, ActiveRuns.run_async)
    submit = Delegate(ActiveRuns, ActiveRuns.submit)
    answer_input = Delegate(ActiveRuns, ActiveRuns.answer_input)
    read_run = Delegate(ActiveRuns, ActiveRuns.read_run)
    follow = Delegate(ActiveRuns, ActiveRuns.follow)
    interrupt = Delegate(ActiveRuns, ActiveRuns.interrupt)

    restart = Delegate(Nodes, Nodes.restart)
    invite = Delegate(Nodes, Nodes.invite)
    add_node = Delegate(Nodes, Nodes.add_node)
    remove = Delegate(Nodes, Nodes.remove)

    new_group = Delegate(NamedGroups, NamedGroups.new_group)
    new_mesh = Delegate(NamedGroups, NamedGroups.new_mesh)

    pull = Delegate(Variables, Variables.pull)
    push = Delegate(Variables, Variables.push)
    scatter = Delegate(Variables, Variables.scatter)
    gather = Delegate(Variables, Variables.gather)
    broadcast = Delegate(Variables, Variables.broadcast)
    restore = Delegate(Variables, Variables.restore)
    show = Delegate(Variables, Variables.show)
    check = Delegate(Variables, Variables.check)
    variables = Delegate(Variables, Variables.variables)
    delete = Delegate(Variables, Variables.delete)
    complete = Delegate(Variables, Variables.complete)
    inspect = Delegate(Variables, Variables.inspect)

    sync = Delegate(SyncedCode, SyncedCode.sync)

    save = Delegate(Saving, Saving.save)
    autosave = Delegate(Saving, Saving.autosave)
    load = Delegate(Saving, Saving.load)

    pause = Delegate(Debugging, Debugging.pause)
    resume = Delegate(Debugging, Debugging.resume)
    where = Delegate(Debugging, Debugging.where)
    up = Delegate(Debugging, Debugging.up)
    down = Delegate(Debugging, Debugging.down)
    choose_frame = Delegate(Debugging, Debugging.choose_frame)
    debug = Delegate(Debugging, Debugging.debug)
    stop_debugging = Delegate(Debugging, Debugging.stop_debugging)
    source = Delegate(Debugging, Debugging.source)

    status = Delegate(Reports, Reports.status)
    look = Delegate(Reports, Reports.look)
    stack = Delegate(Reports, Reports.stack)
    trace = Delegate(Reports, Reports.trace)
    read_profile = Delegate(Reports, Reports.read_profile)
    resources = Delegate(Reports, Reports.resources)
    doctor = Delegate(Reports, Reports.doctor)
    logs = Delegate(Reports, Reports.logs)
    debug_log = Delegate(Reports, Reports.debug_log)
    console = Delegate(Reports, Reports.console)

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    @property
    def attachment(self) -> Attachment:
        return self._attachment  # no docstring, so that the API's pages leave it out: it is not for users

    @property
    def history(self) -> History:
        """What this client has sent to the ranks, in order; ``jdist.export`` makes a script of it."""
        return self.attachment.history

    def metrics(self, run: int = 0) -> Metrics:
        """What ranks have logged with ``jdist.log`` in a run of this client, by its number (0: the newest such run).

        It has the newest twenty runs in which something was logged. Raises UsageError if there is none.
        """
        return Metrics(self.attachment.metrics.find(run))

    @property
    def facts(self) -> ClusterFacts:
        """The controller's newest report of the cluster."""
        return self.attachment.facts

    @property
    def name(self) -> str:
        return self.attachment.link.connection.name

    @property
    def id(self) -> str:
        """A random identifier, which tells apart clusters of the same name."""
        return self.attachment.link.connection.cluster

    @property
    def topology(self) -> Topology:
        return self.facts.topology

    @property
    def world_size(self) -> int:
        return self.topology.world_size

    @property
    def ranks(self) -> list[int]:
        return list(range(self.world_size))

    @property
    def nodes(self) -> list[str]:
        """Host names by node rank; "" for a node that is not attached."""
        return [self.topology.host_of_node(n) for n in range(self.topology.nnodes)]

    @property
    def groups(self) -> dict[str, list[int]]:
        """Named groups, and the mesh's dimensions as ``name=index``."""
        return {n: list(r) for n, r in self.facts.groups.items()}

    @property
    def mesh(self) -> Mesh | None:
        return self.attachment.mesh

    @property
    def generation(self) -> int:
        """How many times the world's process group has been formed."""
        return self.facts.generation

    @property
    def backend(self) -> str:
        return self.facts.backend

    def select(self, ranks: Ranks = None, group: str | None = None) -> tuple[int, ...]:
        """The ranks that a selection such as "0-3,!2" or "node=1" names. Raises UsageError naming what is wrong."""
        return self.attachment.select(ranks, group)

    def select_paused(self, ranks: Ranks = None, group: str | None = None) -> tuple[int, ...]:
        """The ranks of a cell with this selection: without one, the paused ranks if there are any, else all."""
        return self.attachment.select_paused(ranks, group)

    def __repr__(self) -> str:
        facts = self.attachment.current.facts if self.attachment.current is not None else None
        if facts is None:
            return f"<{type(self).__name__}, not attached>"
        size = f"{self.world_size} ranks on {self.topology.nnodes} nodes"
        return f"<{type(self).__name__} {facts.name}: {size}, {facts.backend}, {facts.phase}>"


class AsyncCluster(BaseCluster):
    """An attached cluster. Make one with :meth:`start` or :meth:`attach`; ``async with`` stops it at the end."""

    run = Delegate(ActiveRuns, ActiveRuns.run)
    run_script = Delegate(ActiveRuns, ActiveRuns.run_script)
    profile = Delegate(Reports, Reports.profile)

    def __init__(self) -> None:
        attachment = Attachment()
        super().__init__(attachment)
        self._runs = ActiveRuns(attachment)
        carrier = Carrier(attachment)
        code = SyncedCode(attachment, carrier)
        self._lifecycle = ClusterLifecycle(attachment, code)
        groups = NamedGroups(attachment)
        parts = (
            self._runs,
            carrier,
            code,
            self._lifecycle,
            groups,
            Nodes(attachment, self._lifecycle, code),
            Variables(attachment, self._runs, carrier),
            Saving(attachment, self._runs, groups),
            Debugging(attachment, self._runs),
            Reports(attachment, self._runs, carrier),
            RankComms(attachment, self._runs),
        )
        self._parts: dict[type, Any] = {type(part): part for part in parts}
        self.start_seconds = 0.0  # From the call of start to the formed world.
        self.warnings: tuple[Finding, ...] = ()  # Findings of a short examination at the start; doctor examines more.

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
        keep: bool | None = None,
        kind: str = "python",
        at: str = "",
        at_python: str = "",
        at_install: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
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
        keep : leave a cluster running that an earlier kernel of this notebook started with the same options. False: it
            is stopped if it is idle and no other program uses it. Default: as the variable JDIST_KEEP says, else False.
        at : the host, as ssh knows it, on which the cluster and its controller are started, as ``jdist start`` there
            does; this process stays a client. Default: this host.
        at_python : the Python there, a path or the name of a conda environment, for all that this process does there.
            Default: as the variable JDIST_AT_PYTHON says, else this one's path, else python3.
        at_install : make an environment with this version of jdist there if it is missing.
        on_progress : called with nodes that join or are refused, and with what the launcher waits for. Default: the
            last is written to standard error.
        limits : seconds, by name, as in :class:`jdist.core.settings.Settings` (idle_timeout, interrupt_grace, …).

        Raises UsageError, LaunchError; what was started is ended again.
        """
        began = time.monotonic()
        options: dict[str, Any] = {"init_method": init_method, "launcher": launcher, "fork": fork, "warm": warm}
        options |= {"on_death": on_death, "min_nodes": min_nodes, "bind_host": bind_host, **limits}
        await choose_python(at, at_python, install=at_install)
        if at:
            given = {"nproc_per_node": nproc_per_node, "nnodes": nnodes, "backend": backend, "hosts": hosts, "env": env}
            words = start_words({**options, **given, "timeout": timeout}, launcher_args)
            self = cls()
            await self._lifecycle.start_at(at, words, name or "", kind, on_progress or print_waiting)
            self.start_seconds = time.monotonic() - began
            return self
        settings = make_settings(nproc_per_node, nnodes, name, backend, launcher_args, hosts, env, **options)
        on_progress = on_progress or print_waiting
        await end_earlier(settings, on_progress, is_named=name is not None, keep=keep)
        if name is None:
            settings = replace(settings, name=find.free_name())  # that of the one that was stopped
        self = cls()
        async with self._lifecycle.starting(settings, kind, timeout, on_progress):
            self.warnings = (await examine_briefly(self.link, self.facts)).findings
            for finding in self.warnings:
                self.attachment.notify(Notice(f"⚠ {finding.text}", remedies=(Remedy("doctor", "look closer"),)))
        self.start_seconds = time.monotonic() - began
        return self

    @classmethod
    async def attach(cls, name: str | None = None, *, at: str = "", at_python: str = "", kind: str = "python") -> Self:
        """The cluster called ``name``, or the newest one. Raises UsageError, ConnectionLost, LaunchError.

        ``at``: the host that it is on, as ssh knows it, if it is not this one; ``HOST:NAME`` says the same.
        ``at_python``: the Python there, as for :meth:`start`. If its controller has died, it is started again: the
        agents keep the ranks for the agent grace.
        """
        await choose_python(split_name(name, at)[0], at_python)
        self = cls()
        await self._lifecycle.attach(name, kind, at)
        return self

    @classmethod
    async def observe(cls, connection: Connection) -> Self:
        """The cluster at ``connection``, as an observer, who neither prevents its idle end nor restarts its controller.

        Watchers get RunsChanged when a run begins or ends or its verdict changes. Raises ConnectionLost, ProtocolError.
        """
        self = cls()
        await self._lifecycle.observe(connection)
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def part(self, kind: type[T]) -> T:
        """The part that is an instance of ``kind``."""
        found: T = self._parts[kind]
        return found

    def is_following(self, run: int) -> bool:
        """Whether the run is unfinished and this client has started or followed it."""
        return run in self._runs

    @property
    def link(self) -> Link:
        """The connection to the controller. Raises UsageError before start or attach."""
        return self.attachment.link

    def watch(self, watcher: Callable[[Message], None]) -> Callable[[], None]:
        """Call ``watcher`` with notices, facts and input requests, on the link's loop. Returns the way to end that."""
        return self.attachment.watch(watcher)


async def start_at(
    at: str, words: Sequence[str], name: str | None, *, kind: str, on_progress: Callable[[Progress], None]
) -> AsyncCluster:
    """Start a cluster at another host, with these words of ``jdist start`` there. Raises UsageError, LaunchError."""
    began = time.monotonic()
    cluster = AsyncCluster()
    await cluster.part(ClusterLifecycle).start_at(at, words, name or "", kind, on_progress)
    cluster.start_seconds = time.monotonic() - began
    return cluster


def like(method: Callable[..., Any]) -> Callable[[F], F]:
    """The decorated method has the signature and docstring of ``method``."""
    original = getattr(method, "__func__", method)  # of a class method: with its cls
    return lambda own: functools.update_wrapper(own, original)  # type: ignore[return-value]


class Cluster(BaseCluster):
    """A cluster, for notebooks and scripts: each method blocks until it is done. ``with`` stops it at the end."""

    panel: Callable[[], Any]  # added by jdist.notebook.page, which this floor does not know

    def __init__(self, asynchronous: AsyncCluster):
        super().__init__(asynchronous.attachment)
        self.asynchronous = asynchronous

    @classmethod
    @like(AsyncCluster.start)
    def start(cls, *args: Any, **kwargs: Any) -> Self:
        return cls(bridge().call(AsyncCluster.start(*args, **kwargs)))

    @classmethod
    @like(AsyncCluster.attach)
    def attach(cls, *args: Any, **kwargs: Any) -> Self:
        return cls(bridge().call(AsyncCluster.attach(*args, **kwargs)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @like(AsyncCluster.run)
    def run(
        self, code: str, ranks: Any = None, *, background: bool = False, check: bool = True, **options: Any
    ) -> CellRun:
        run = bridge().call(self.asynchronous.run(code, ranks, background=True, **options))
        if background:
            return run
        try:
            self._wait(run)
        except KeyboardInterrupt:  # if the ranks fail of it, the error carries the run
            run.check()
            raise
        if check:
            run.check()
        return run

    def _wait(self, run: CellRun) -> None:
        """Wait for a run; a KeyboardInterrupt interrupts the ranks, too, and is raised once they are free."""
        try:
            run.wait()
        except KeyboardInterrupt:
            run.cancel()
            try:
                run.wait()
            except KeyboardInterrupt:  # Ctrl-C again: interrupt the cell's own handlers, too
                run.cancel()
                run.wait()
            raise

    @like(AsyncCluster.profile)
    def profile(self, code: str, ranks: Any = None, *, timeout: float | None = None, **options: Any) -> "Profile":
        chosen = self.select(ranks)
        run = self.submit(code, chosen, timeout=timeout, profile=profile_options(len(chosen), **options))
        with contextlib.suppress(KeyboardInterrupt):  # what there is up to then is the answer
            self._wait(run)
        return self.read_profile(run)

    @like(AsyncCluster.run_script)
    def run_script(self, path: str, args: Any = (), ranks: Any = None, *, timeout: float | None = None) -> CellRun:
        return self.run(script_cell(path, args), ranks, timeout=timeout)

    @property
    def start_seconds(self) -> float:
        return self.asynchronous.start_seconds

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.asynchronous.warnings


def start(nproc_per_node: int | str | None = None, nnodes: int | None = None, **options: Any) -> Cluster:
    """Start a cluster on ``nnodes`` nodes (default 1); options as in :meth:`AsyncCluster.start`."""
    return Cluster.start(nproc_per_node, nnodes, **options)


def attach(name: str | None = None, *, at: str = "", at_python: str = "") -> Cluster:
    """The running cluster called ``name``, or the newest one; ``at``: on this host behind ssh, by this Python there."""
    return Cluster.attach(name, at=at, at_python=at_python)


def list_clusters() -> list[Connection]:
    """The connection files of this user's running clusters, newest first."""
    return list(find.connections().values())
