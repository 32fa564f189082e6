"""AsyncCluster: a cluster as a client uses it, in coroutines; :class:`~jdist.client.blocking.Cluster` is its twin.

Each method delegates to the part that does the work. The parts share the ``attachment``; queries go to its link.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from jdist.client.attachment import Attachment, Ranks
from jdist.client.doctor.collect import examine
from jdist.client.doctor.debug_log import DebugLogs, collect_logs
from jdist.client.doctor.diagnosis import Diagnosis, Finding
from jdist.client.expressions import script_cell
from jdist.client.find import free_name
from jdist.client.lifecycle.earlier import end_earlier
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
from jdist.client.lifecycle.nodes import Nodes
from jdist.client.lifecycle.start import Progress, Waiting, make_settings, print_waiting
from jdist.client.link import Link, new_request
from jdist.client.measure.trace import Trace, collect_trace
from jdist.client.run import CellRun
from jdist.client.session.saving import SessionCluster
from jdist.client.sync.code_sync import Synced, SyncedCode
from jdist.client.values.carrier import OnProgress
from jdist.core.messages.base import Message
from jdist.core.messages.membership import Resized
from jdist.core.messages.observation import GetStack, Observation, Observe, StackText
from jdist.core.messages.runs import CellSpec, InputReply, Interrupt, RunCell
from jdist.core.messages.status import StatusReport, StatusRequest
from jdist.core.messages.values import Console, ConsoleAt, Logs, LogText
from jdist.core.profile import profile_options
from jdist.core.settings import Host, OnDeath
from jdist.wire.transport.keys import Connection

if TYPE_CHECKING:
    from jdist.client.measure.profile import Profile


class AsyncCluster(SessionCluster):
    """An attached cluster. Make one with :meth:`start` or :meth:`attach`; ``async with`` stops it at the end."""

    def __init__(self) -> None:
        super().__init__(Attachment())
        self._lifecycle = ClusterLifecycle(self.attachment, self._runs)
        self._code = SyncedCode(self.attachment)
        self._nodes = Nodes(self.attachment, self._lifecycle, self._code)
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
        on_progress : called with nodes that join or are refused, and with what the launcher waits for. Default: the
            last is written to standard error.
        limits : seconds, by name, as in :class:`jdist.core.settings.Settings` (idle_timeout, interrupt_grace, …).

        Raises UsageError, LaunchError; what was started is ended again.
        """
        began = time.monotonic()
        options: dict[str, Any] = {"init_method": init_method, "launcher": launcher, "fork": fork, "warm": warm}
        options |= {"on_death": on_death, "min_nodes": min_nodes, "bind_host": bind_host, **limits}
        settings = make_settings(nproc_per_node, nnodes, name, backend, launcher_args, hosts, env, **options)
        on_progress = on_progress or print_waiting
        await end_earlier(settings, on_progress, is_named=name is not None, keep=keep)
        if name is None:
            settings = replace(settings, name=free_name())  # that of the one that was stopped
        self = cls()
        self.warnings = await self._lifecycle.start(settings, kind, timeout, on_progress)
        self.start_seconds = time.monotonic() - began
        return self

    @classmethod
    async def attach(cls, name: str | None = None, *, kind: str = "python") -> Self:
        """The cluster called ``name``, or the newest one. Raises UsageError, ConnectionLost, LaunchError.

        If its controller has died, it is started again: the agents keep the ranks for the agent grace.
        """
        self = cls()
        await self._lifecycle.attach(name, kind)
        return self

    @classmethod
    async def observe(cls, connection: Connection) -> Self:
        """The cluster at ``connection``, as an observer, who neither prevents its idle end nor restarts its controller.

        Watchers get RunsChanged when a run begins or ends or its verdict changes. Raises ConnectionLost, ProtocolError.
        """
        self = cls()
        await self._lifecycle.observe(connection)
        return self

    async def revived(self) -> None:
        """If the controller has died, have it started again; returns when that is over, whether or not it succeeded."""
        await self._lifecycle.revived()

    async def detach(self) -> None:
        """Leave the cluster running and close this client."""
        await self._code.close()
        await self._lifecycle.detach()

    async def stop(self, *, now: bool = False) -> None:
        """End the cluster: no process, port, socket file or shared memory is left. Raises LaunchError.

        Ranks end side by side, as a kernel does: cells are interrupted, threads finish, exit functions run. What takes
        longer than ``end_grace`` seconds is cut off, and watchers get a Notice that says what. ``now``: kill them.
        """
        await self._code.close()
        await self._lifecycle.stop(now=now)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def run(  # noqa: PLR0913 — the options of a cell, by name
        self,
        code: str,
        ranks: Ranks = None,
        *,
        group: str | None = None,
        timeout: float | None = None,
        check: bool = True,
        background: bool = False,
        allow_stdin: bool = False,
        setup: bool = False,
        internal: bool = False,
        hold: bool = False,
        in_failure: bool = False,
    ) -> CellRun:
        """Run ``code`` on ranks and wait for it (not with ``background``). On a paused rank, it runs in its frame.

        ``timeout`` counts seconds from the moment when the ranks start on it; pauses do not count. With ``hold``, a
        failure pauses the rank where it happened; with ``in_failure``, the cell runs where the ranks' last cell failed
        (see :meth:`debug`). Raises CellError (CellTimeout, RankLost, CellInterrupted) when a rank failed, unless
        ``check`` is False; the run is on the error.

        >>> (await cluster.run("x = rank * 10; x", ranks="0-3", timeout=20)).values
        {0: 0, 1: 10, 2: 20, 3: 30}
        """
        run = await self.submit(
            code,
            self.select_paused(ranks, group),
            timeout=timeout,
            allow_stdin=allow_stdin,
            is_setup=setup,
            is_internal=internal,
            holds=hold,
            in_failure=in_failure,
        )
        return run if background else await self._runs.wait(run, check=check)

    async def run_async(self, code: str, ranks: Ranks = None, *, timeout: float | None = None) -> CellRun:
        """Run ``code`` and return at once; wait with ``run.wait()`` or ``await run``."""
        return await self.run(code, ranks, timeout=timeout, background=True)

    async def run_script(
        self, path: str, args: Sequence[str] = (), ranks: Ranks = None, *, timeout: float | None = None
    ) -> CellRun:
        """Run a torchrun script on every rank as ``__main__``, in the live session."""
        return await self.run(script_cell(path, args), ranks, timeout=timeout)

    async def submit(self, /, code: str, ranks: tuple[int, ...], **options: Any) -> CellRun:
        """Send a cell to the ranks and return its run without waiting for it. Raises UsageError when it is refused.

        ``options`` are the fields of :class:`~jdist.core.messages.runs.CellSpec`.
        """
        return await self._runs.submit(RunCell(new_request(), CellSpec(code, **options), ranks))

    async def profile(
        self, code: str, ranks: Ranks = None, *, timeout: float | None = None, **options: Any
    ) -> "Profile":
        """Run ``code`` under torch.profiler and wait for it; who waited for whom. Notebooks draw the answer.

        ``wait``, ``warmup``, ``active``, ``repeat``: steps as in :func:`torch.profiler.schedule`; default: the whole.
        A step ends where the first optimizer has stepped, or the cell calls ``jdist.profile_step()``. ``activities``:
        "cpu,cuda". A cell that fails has a profile, too: ``profile.run.check()`` raises its error. Raises UsageError.
        """
        chosen = self.select(ranks)
        made = profile_options(len(chosen), **options)
        run = await self._runs.wait(await self.submit(code, chosen, timeout=timeout, profile=made), check=False)
        return await self.read_profile(run)

    async def read_profile(self, run: CellRun | int = 0) -> "Profile":
        """The profile of a run that is over (0: the last profiled one, the only one kept). Raises UsageError."""
        from jdist.client.measure.profile import collect_profile  # only here: it imports numpy

        return await collect_profile(self.attachment, run)

    async def answer_input(self, run: int, rank: int, text: str) -> None:
        """Send the line that the user typed to a rank that reads input()."""
        self.link.send(InputReply(run, rank, text))

    async def read_run(self, number: int = 0) -> CellRun:
        """A run of this cluster (0: the newest), also one of another notebook: what it has written, and how it ended.

        The controller keeps this of the newest runs, without values; ``outcomes`` has it by rank. Raises UsageError if
        it is not kept any more.
        """
        return await self._runs.read(number)

    async def interrupt(self, ranks: Ranks = None, *, run: int = 0) -> None:
        """Stop what runs on ``ranks``, or one run; every namespace is kept and the world re-formed.

        Raises UsageError if ``run`` is over.
        """
        chosen = () if ranks is None else self.select(ranks)
        await self.link.request(Interrupt(new_request(), chosen, run), object)

    async def restart(self, ranks: Ranks = None) -> None:
        """Replace the processes of ``ranks``; their namespaces are lost, the world is re-formed.

        Where a rank's node has lost its agent, another is started, for all of the node's ranks. Raises UsageError with
        the way to do that by hand if it cannot be done from here, and LaunchError.
        """
        await self._nodes.restart(ranks)

    async def invite(self, seconds: float | None = None, *, revoke: bool = False) -> str:
        """A line with which agents join this cluster, on any host, for ``seconds`` (default: a day). It holds keys.

        ``revoke``: no line that was made before can be used any more; nodes that have joined stay.
        """
        return await self._nodes.invite(seconds, revoke=revoke)

    async def add_node(
        self,
        nproc: int | None = None,
        *,
        host: str = "",
        launcher: str | None = None,
        launcher_args: Sequence[str] = (),
        fork: bool | None = None,
        timeout: float = 120.0,
        on_progress: Callable[[Waiting], None] | None = None,
    ) -> Resized:
        """Launch one node more, and form the world again with its ranks, which get the highest numbers.

        ``nproc`` ranks, by default as many as the last node has; ``host``, for ssh and mpi, is "c", or "c:2" with its
        ranks; ``launcher`` and ``fork`` by default as the cluster was started. ``on_progress`` is called with what the
        launcher waits for; by default that is written to standard error. Every other rank keeps its number and its
        names; on the new ones, setup cells have been run and :meth:`restore` copies what replicas hold. Raises
        UsageError (also while a cell runs), LaunchError.
        """
        options: dict[str, Any] = {"fork": fork, "timeout": timeout, "on_progress": on_progress or print_waiting}
        return await self._nodes.add(nproc, launcher, launcher_args, host=host, **options)

    async def remove(self, ranks: Ranks) -> Resized:
        """End ``ranks`` for good, and form the world again without them; a node that has none left is released.

        The others keep their names and close up in their order; ``renumbered`` of the answer is ``{old: new}``.
        Raises UsageError (also while a cell runs).
        """
        return await self._nodes.remove(ranks)

    async def new_group(self, name: str, ranks: Ranks) -> str:
        """Make a named process group, now and after every re-forming: ``-g NAME``, ``groups["NAME"]`` on the ranks."""
        return await self._groups.new_group(name, ranks)

    async def new_mesh(self, text: str) -> str:
        """Make a named mesh such as "dp=2,tp=2": ``-r dp=0`` in the notebook, ``mesh["dp"]`` on the ranks."""
        return await self._groups.new_mesh(text)

    async def pull(
        self, names: str, ranks: Ranks = None, *, full: bool = False, on_progress: OnProgress | None = None
    ) -> dict[Any, Any]:
        """``{rank: value}`` of a name or expression; of several ("a, b"), ``{name: {rank: value}}``.

        ``full=True`` assembles DTensors first, for which all ranks must be free. Raises ValueFailed, with the values
        that did arrive in its ``values``.
        """
        return await self._values.pull(names, ranks, full=full, on_progress=on_progress)

    async def push(self, /, ranks: Ranks = None, *, on_progress: OnProgress | None = None, **values: Any) -> None:
        """Bind ``values`` by name on ranks. Raises ValueFailed."""
        await self._values.push(values, ranks, on_progress)

    async def scatter(
        self, name: str, value: Any, dim: int = 0, ranks: Ranks = None, *, on_progress: OnProgress | None = None
    ) -> None:
        """Bind part i of ``value`` along ``dim`` as ``name`` on the i-th rank; parts as torch.tensor_split cuts."""
        await self._values.scatter(name, value, dim, ranks, on_progress)

    async def gather(
        self, name: str, dim: int = 0, ranks: Ranks = None, *, on_progress: OnProgress | None = None
    ) -> Any:
        """The ranks' values of ``name``, concatenated along ``dim`` in rank order."""
        return await self._values.gather(name, dim, ranks, on_progress)

    async def broadcast(self, name: str, src: int = 0) -> None:
        """Bind rank ``src``'s value of ``name`` on every rank; moves between the ranks, not through the notebook."""
        await self._values.broadcast(name, src)

    async def restore(self, rank: Ranks, src: int, names: str) -> dict[int, dict[str, str]]:
        """Copy ``names`` to a fresh rank (or several) from rank ``src``, which must be its replica.

        Moves between the ranks, which must all be free. A module, optimizer or other object with a state_dict that the
        rank has made again is filled in place; what it lacks is sent whole; DDP is wrapped around its module again.
        ``{rank: {name: what was done}}``. Raises UsageError, with nothing changed, for names that ``src`` lacks or that
        do not fit.
        """
        return await self._values.restore(rank, src, names)

    async def sync(
        self, path: str, *, exclude: Sequence[str] = (), watch: bool = False, on_progress: OnProgress | None = None
    ) -> Synced:
        """Copy a local file or folder to every node, only what has changed, and have every rank import from it.

        The copy is in a folder of the cluster's own that ends with it; what was deleted here is deleted there. A folder
        with an ``__init__.py`` is imported by its name, any other folder's modules by theirs. Modules that are loaded
        already are read again before a rank's next cell, and names imported from them are updated. Left out are .git,
        __pycache__, what .gitignore files name, and ``exclude``, in the same syntax.
        With ``watch``, changes are synced as they happen until this client detaches, or syncs the path without it.
        Nodes and ranks that join later have the code, too. Raises UsageError naming node and file; nothing has been
        changed then.
        """
        return await self._code.sync(path, exclude, watch=watch, on_progress=on_progress)

    async def status(self) -> StatusReport:
        """Every rank's row, unfinished runs, groups."""
        return await self.link.request(StatusRequest(new_request()), StatusReport)

    async def look(self, ranks: Ranks = None, timeout: float = 2.0) -> dict[int, Observation]:
        """What each rank's main thread does now, and its GPU's load; a rank that does not answer is missing."""
        answers = await self.link.query(self.select(ranks), Observe(with_gpu=True), timeout)
        return {r: a for r, a in sorted(answers.items()) if isinstance(a, Observation)}

    async def trace(self, run: int = 0) -> Trace:
        """The calls of torch.distributed that ranks made in ``run`` (0: the last one), with who waited for whom.

        Notebooks draw it. A rank that does not answer is in its ``absent``. Raises UsageError when no rank knows of it.
        """
        return await collect_trace(self.link, self.facts, run)

    async def doctor(self, *, on_step: Callable[[str], None] | None = None) -> Diagnosis:
        """Examine every node and every network path between two of them; cells are not disturbed.

        ``on_step`` is called with the current step. ``str()`` of the answer has the findings, worst first; a node that
        cannot be examined is one.
        """
        return await examine(self.link, self.facts, on_step or (lambda _: None))

    async def stack(self, rank: int, timeout: float = 5.0) -> str:
        """The stack of a rank's main thread, as Python prints one; from the cell on, where one runs."""
        return (await self.link.query_one(self.select(rank)[0], GetStack(), StackText, timeout)).text

    async def logs(self, rank: int, lines: int = 50) -> LogText:
        """The newest lines of a rank's log, and where it lies on its node."""
        return await self.link.query_one(self.select(rank)[0], Logs(lines), LogText)

    async def debug_log(self, lines: int = 200) -> DebugLogs:
        """The newest log records of all processes by time; ``JDIST_LOG=debug`` at the cluster's start adds more."""
        return await collect_logs(self.link, self.facts, lines)

    async def console(self, rank: int) -> ConsoleAt:
        """Host and connection file for ``jupyter console --existing``."""
        return await self.link.query_one(self.select(rank)[0], Console(), ConsoleAt)

    @property
    def link(self) -> Link:
        """The connection to the controller. Raises UsageError before start or attach."""
        return self.attachment.link

    def watch(self, watcher: Callable[[Message], None]) -> Callable[[], None]:
        """Call ``watcher`` with notices, facts and input requests, on the link's loop. Returns the way to end that."""
        return self.attachment.watch(watcher)
