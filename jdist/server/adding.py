"""Adding: nodes that are being added to running clusters from a browser, how far that is, and how it has ended."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from jdist.client.cluster import AsyncCluster
from jdist.client.lifecycle.start import Waiting
from jdist.core.errors import JdistError, UsageError
from jdist.core.settings import Host
from jdist.launch.base import find_launcher
from jdist.launch.hosts import parse_hosts
from jdist.server.snapshots import AddingRow, ClusterSnapshot, redacted

_WITHIN = 120.0  # Seconds for a node on this machine to join.
_WITHIN_ELSEWHERE = 3600.0  # Seconds for one that a scheduler starts, or a person.
_KEPT = 60.0  # Seconds for which the browser that asked can see how it has ended.
_UNDO = 30.0  # Seconds to end what was begun.


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
