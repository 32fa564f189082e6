"""Start clusters from a browser, and add nodes to running ones.

A policy limits which clusters may be started. Starts and additions that are under way are kept here with their
progress, and those that failed until the browser has been told.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from jdist.client.cluster import AsyncCluster
from jdist.client.lifecycle.start import Progress, Waiting, describe_missing
from jdist.core.errors import JdistError, UsageError, nearest
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.settings import LIMIT_OPTIONS, Host, StartOptions
from jdist.launch.base import LauncherForm, find_launcher
from jdist.launch.hosts import parse_hosts
from jdist.server.snapshots import AddingRow, ClusterSnapshot, redacted

LOCAL = "local"
KIND = "browser"  # Kind of a client that starts a cluster for a browser, and detaches from it once it is formed.
_UNDO = 30.0  # Seconds for a cancelled start to end what it began.


class StartArguments(StartOptions, frozen=True, forbid_unknown_fields=True):
    """The arguments that a browser may give, each as in :meth:`jdist.AsyncCluster.start`."""

    launcher: str = ""  # Empty: the first that is allowed.
    at: str = ""  # The host on which it is started, as ssh knows it; empty: this one.


class Policy(Struct, frozen=True):
    """Limits of one server. The user's own notebooks and terminals are limited by the operating system only.

    They hold for starts on other hosts, too, and the ranks of other hosts' clusters that pages look at are counted.
    """

    max_ranks: int = 0  # Ranks in all clusters of the user together; 0: any number.
    allowed_launchers: tuple[str, ...] = ()  # Empty: all that are installed.
    default_args: dict[str, Any] = {}

    def complete(self, asked: Mapping[str, Any], ranks_here: int) -> dict[str, Any]:
        """Arguments for a start, from ``asked`` and the defaults; ``ranks_here`` run already. Raises UsageError."""
        given = {**self.default_args, **{key: value for key, value in asked.items() if value is not None}}
        try:
            start = msgspec.convert(given, StartArguments)
        except msgspec.ValidationError as e:
            raise UsageError(f"start: {e}") from None
        launcher = self._launcher(start.launcher)
        if self.max_ranks:
            self.check_ranks(ranks_here + _count(start, launcher))
        arguments = {**msgspec.structs.asdict(start), "launcher": launcher}
        return {name: value for name, value in arguments.items() if name not in LIMIT_OPTIONS or value is not None}

    def check_ranks(self, ranks: int) -> None:
        """Raises UsageError if more ranks would run than are allowed."""
        if self.max_ranks and ranks > self.max_ranks:
            raise UsageError(
                f"this server allows {self.max_ranks} ranks in all your clusters together, and there would be {ranks}; "
                "stop a cluster, or start fewer ranks (c.Jdist.max_ranks)"
            )

    def launchers(self, installed: list[str]) -> list[str]:
        """The launchers that may be used, the default first."""
        allowed = [n for n in self.allowed_launchers if n in installed] if self.allowed_launchers else installed
        first = str(self.default_args.get("launcher", LOCAL))
        return sorted(allowed, key=lambda name: name != first)

    def check_launcher(self, name: str) -> str:
        """The launcher's name. Raises UsageError if it may not be used."""
        if self.allowed_launchers and name not in self.allowed_launchers:
            raise UsageError(f"this server does not allow launcher {name!r}{nearest(name, self.allowed_launchers)}")
        return name

    def _launcher(self, asked: str) -> str:
        allowed = self.allowed_launchers or (LOCAL,)
        return self.check_launcher(asked or (LOCAL if LOCAL in allowed else allowed[0]))


def form_of(launcher: str) -> LauncherForm:
    """The fields of the launcher; why it cannot be used, if a package that it needs is not installed."""
    try:
        return find_launcher(launcher).form
    except UsageError as e:
        return LauncherForm(problem=str(e))


def _count(start: StartArguments, launcher: str) -> int:
    """The number of ranks that will run. Raises UsageError if it would depend on the nodes."""
    text = "" if start.nproc_per_node is None else str(start.nproc_per_node)
    counts = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    nnodes = start.nnodes or (len(counts) if len(counts) > 1 else 1 if launcher == LOCAL else 0)
    if not all(counts) or not nnodes:
        raise UsageError("this server limits the number of ranks: say how many nodes, and how many ranks on each")
    return sum(counts) if len(counts) > 1 else counts[0] * nnodes


class _Start(Struct):
    task: asyncio.Task[None] | None = None
    text: str = ""  # What the start waits for.
    instructions: str = ""  # What the user has to do; it may contain the join line, so no snapshot has it.
    error: str = ""


class PendingStarts:
    """Starts by name; calls ``update(name, notice)`` when one makes progress. Lives on the client's loop.

    ``accept(name, ranks)`` takes over a cluster that is formed; it raises UsageError if there are too many ranks.
    """

    def __init__(self, update: Callable[[str, str], None], accept: Callable[[str, int], Awaitable[None]]):
        self._update = update
        self._accept = accept
        self._starts: dict[str, _Start] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._starts

    @property
    def names(self) -> list[str]:
        return list(self._starts)

    async def begin(self, arguments: dict[str, Any], taken: set[str]) -> str:
        """Begin a start, and return its name, which is free; the others are ``taken``. Raises UsageError."""
        used = {*taken, *(name for name, start in self._starts.items() if not start.error)}
        host = f"{arguments['at']}:" if arguments["at"] else ""
        local = arguments["name"] or next(f"c{n}" for n in itertools.count(1) if f"{host}c{n}" not in used)
        name = f"{host}{local}"
        if name in used:
            raise UsageError(f"a cluster called {name} is already running; choose another name")
        start = self._starts[name] = _Start()
        start.task = asyncio.ensure_future(self._start(name, start, {**arguments, "name": local}))
        self._update(name, "")
        return name

    async def _start(self, name: str, start: _Start, arguments: dict[str, Any]) -> None:
        def handle_progress(progress: Progress) -> None:
            match progress:
                case ClusterFacts():
                    start.text = describe_missing(progress)
                case Waiting(text, is_instruction=True):
                    start.instructions = text
                case Waiting(text) if text:
                    start.text = text
                case Notice():
                    self._update(name, str(progress))
            self._update(name, "")

        try:
            cluster = await AsyncCluster.start(kind=KIND, on_progress=handle_progress, **arguments)
            try:
                await self._accept(name, cluster.world_size)  # nodes may have brought more ranks than are allowed
            except UsageError:
                await cluster.stop()
                raise
            await cluster.detach()
        except (JdistError, OSError) as e:
            start.error = redacted(str(e))
            self._update(name, f"cluster {name} could not be started: {e}")
        else:
            self._starts.pop(name, None)
            self._update(name, "")

    async def end(self, name: str) -> None:
        """Cancel a start, or forget one that has failed."""
        start = self._starts.get(name)
        if start is not None and start.task is not None and not start.task.done():
            start.task.cancel()
            await asyncio.wait([start.task], timeout=_UNDO)
        self._starts.pop(name, None)
        self._update(name, "")

    async def close(self) -> None:
        """Cancel all that are under way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UNDO):
                await asyncio.gather(*(self.end(name) for name in self.names))

    def snapshot(self, name: str, known: ClusterSnapshot | None) -> ClusterSnapshot | None:
        """What is ``known`` of the cluster already, with its start if there is one."""
        if name not in self._starts:
            return known
        start = self._starts[name]
        state = "failed" if start.error else "starting"
        shown = known or ClusterSnapshot(name=name, state=state, reason=start.error)
        waits_for = None if start.error else redacted(start.text)
        return replace(shown, starting=waits_for, has_instructions=bool(start.instructions) or UNSET)

    def instructions(self, name: str) -> str:
        """What the user has to do for the nodes to join, with the join line. Raises UsageError if there is nothing."""
        start = self._starts.get(name)
        if start is None or not start.instructions:
            raise UsageError(f"no start of a cluster called {name} waits for nodes that you have to start")
        return start.instructions


_WITHIN = 120.0  # Seconds for a node on this machine to join.
_WITHIN_ELSEWHERE = 3600.0  # Seconds for one that a scheduler starts, or a person.
_KEPT = 60.0  # Seconds for which the browser that asked can see how it has ended.


class AddArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What a browser may ask for; empty fields are filled in as :meth:`jdist.AsyncCluster.add_node` does it."""

    count: int = 1  # Number of nodes, unless hosts are named.
    nproc: int | None = None  # Ranks on each.
    hosts: str = ""
    launcher: str = ""  # Empty: that of the cluster.
    launcher_args: tuple[str, ...] = ()

    @property
    def nodes(self) -> list[Host | None]:
        """A host for each node to add; None where the launcher chooses it. Raises UsageError."""
        if self.hosts.strip():
            return list(parse_hosts(self.hosts))
        return [None] * self.count

    def count_ranks(self, usual: int) -> int:
        """The number of ranks to add; ``usual`` are those of a node of which nothing else is said."""
        return sum((host.slots if host is not None else 0) or self.nproc or usual for host in self.nodes)


def read_arguments(asked: Mapping[str, Any]) -> AddArguments:
    """What a browser asks for. Raises UsageError."""
    try:
        given = msgspec.convert({key: value for key, value in asked.items() if value is not None}, AddArguments)
    except msgspec.ValidationError as e:
        raise UsageError(f"add a node: {e}") from None
    if given.count < 1:
        raise UsageError(f"add a node: {given.count} nodes cannot be added")
    return given


class _Adding(Struct):
    """Nodes that are being added to one cluster."""

    row: AddingRow
    task: asyncio.Task[None] | None = None
    instructions: str = ""  # What the user has to do; it may contain the join line, so no snapshot has it.


class NodeAdder:
    """Adds nodes, one after the other; calls ``update(name, notice)`` when it makes progress. On the client's loop."""

    def __init__(self, update: Callable[[str, str], None]):
        self._update = update
        self._adding: dict[str, _Adding] = {}  # By the cluster's name.
        self._numbers = itertools.count(1)

    def begin(self, name: str, cluster: AsyncCluster, asked: AddArguments, launcher: str) -> int:
        """Begin to add nodes by ``launcher``, and return the number by which that is known. Raises UsageError."""
        nodes = asked.nodes
        known = self._adding.get(name)
        if known is not None and known.row.state == "adding":
            raise UsageError(f"nodes are being added to cluster {name}; wait until they are there, or cancel it")
        is_remote = find_launcher(launcher).is_remote
        options = {
            "nproc": asked.nproc,
            "launcher": asked.launcher or None,
            "launcher_args": asked.launcher_args,
            "timeout": _WITHIN_ELSEWHERE if is_remote else _WITHIN,
        }
        row = AddingRow(next(self._numbers), "adding", "", 0, len(nodes))
        adding = self._adding[name] = _Adding(row)
        adding.task = asyncio.ensure_future(self._add(name, adding, cluster, nodes, options))
        self._update(name, "")
        return row.number

    async def _add(
        self, name: str, adding: _Adding, cluster: AsyncCluster, nodes: list[Host | None], options: dict[str, Any]
    ) -> None:
        def handle_progress(waiting: Waiting) -> None:
            adding.instructions = waiting.text if waiting.is_instruction else ""
            text = "waiting for the node to join" if waiting.is_instruction else redacted(waiting.text)
            adding.row = replace(adding.row, text=text)
            self._update(name, "")

        try:
            for done, host in enumerate(nodes, 1):
                where = "" if host is None else host.name + (f":{host.slots}" if host.slots else "")
                resized = await cluster.add_node(host=where, on_progress=handle_progress, **options)
                adding.instructions = ""
                adding.row = replace(adding.row, text="", done=done)
                self._update(name, str(resized))
        except (JdistError, OSError) as e:
            adding.instructions = ""
            adding.row = replace(adding.row, state="failed", text=redacted(str(e)))
            self._update(name, f"cluster {name}: no node could be added: {e}")
        else:
            adding.row = replace(adding.row, state="added")
            self._update(name, "")
        asyncio.get_running_loop().call_later(_KEPT, self._forget, name, adding)

    def _forget(self, name: str, adding: _Adding) -> None:
        if self._adding.get(name) is adding:
            del self._adding[name]
            self._update(name, "")

    async def end(self, name: str) -> None:
        """Cancel what is under way: nodes that have joined stay. Forget what has ended."""
        adding = self._adding.get(name)
        if adding is not None and adding.task is not None and not adding.task.done():
            adding.task.cancel()
            await asyncio.wait([adding.task], timeout=_UNDO)
        if adding is not None:
            self._forget(name, adding)

    async def close(self) -> None:
        """Cancel all that is under way."""
        await asyncio.gather(*(self.end(name) for name in list(self._adding)))

    def snapshot(self, name: str, known: ClusterSnapshot | None) -> ClusterSnapshot | None:
        """What is ``known`` of the cluster, with the nodes that are being added to it."""
        adding = self._adding.get(name)
        if adding is None or known is None:
            return known
        has_instructions = known.has_instructions or bool(adding.instructions) or msgspec.UNSET
        return replace(known, adding=adding.row, has_instructions=has_instructions)

    def instructions(self, name: str) -> str:
        """What the user has to do for the next node to join; "" if there is nothing."""
        adding = self._adding.get(name)
        return "" if adding is None else adding.instructions
