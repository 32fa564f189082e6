"""Attachment: a client's link to one cluster, and what the parts of AsyncCluster share about it."""

import os
import sys
from collections.abc import Callable, Iterable

from jdist.client.history import History
from jdist.client.link import Link
from jdist.client.measure.metrics import KeptMetrics, Metrics
from jdist.client.values.carrier import Carrier
from jdist.core.errors import UsageError
from jdist.core.import_path import ImportPath, split, this_interpreter
from jdist.core.messages.base import Message
from jdist.core.messages.code import UseImportPath
from jdist.core.messages.status import ClusterFacts
from jdist.core.ranks import RankSet
from jdist.core.topology import Mesh, Topology

Ranks = str | int | Iterable[int] | None  # Text for RankSet.parse, one rank, several ranks, or None for all.


class Attachment:
    """The current link of a client, which is replaced when the controller is; its watchers and its history."""

    def __init__(self) -> None:
        self.current: Link | None = None  # The link, also after it was lost; None before the client attached.
        self.history = History()
        self.metrics = KeptMetrics()
        self._carrier: Carrier | None = None
        self._import_path: ImportPath | None = None  # As it was sent last on the current link.
        self._watchers: list[Callable[[Message], None]] = []

    def adopt(self, link: Link) -> None:
        self.current = link
        if self._carrier is None:
            self._carrier = Carrier(link)
        else:
            self._carrier.use(link)
        self._import_path = None

    def close(self) -> None:
        """Close the link and remove this client's mark from shared memory; may be called again."""
        if self._carrier is not None:
            self._carrier.close()
        if self.current is not None:
            self.current.close()

    @property
    def link(self) -> Link:
        """The connection to the controller. Raises UsageError before start or attach."""
        if self.current is None:
            raise UsageError("this cluster is not attached; use start() or attach()")
        return self.current

    @property
    def carrier(self) -> Carrier:
        """Moves values between this process and the ranks. Raises UsageError before start or attach."""
        if self._carrier is None:
            raise UsageError("this cluster is not attached; use start() or attach()")
        return self._carrier

    async def send_import_path(self) -> None:
        """Have ranks find modules where this process does, before a cell is sent. Does nothing if they do."""
        link = await self.link.current()
        try:
            directory = os.getcwd()
        except OSError:  # it was removed
            return
        path = split(sys.path, directory, this_interpreter())
        if path != self._import_path:
            link.send(UseImportPath(path))
            self._import_path = path

    @property
    def facts(self) -> ClusterFacts:
        """The controller's newest report of the cluster. Raises UsageError before the first one."""
        facts = self.link.facts
        if facts is None:
            raise UsageError("the controller has not reported anything about the cluster yet")
        return facts

    @property
    def mesh(self) -> Mesh | None:
        return None if self.facts.mesh is None else Mesh(*self.facts.mesh)

    def select(self, ranks: Ranks = None, group: str | None = None) -> tuple[int, ...]:
        """The ranks that a user's selection names. Raises UsageError naming what is wrong with it."""
        if group is None and ranks is None:
            return tuple(range(self.facts.topology.world_size))
        text = ranks if group is None else group
        if not isinstance(text, str):
            text = str(text) if isinstance(text, int) else ",".join(map(str, text or ()))
        return tuple(RankSet.parse(text, self.facts.topology, self.mesh, self.facts.groups))

    def select_paused(self, ranks: Ranks = None, group: str | None = None) -> tuple[int, ...]:
        """The same, where no choice means the paused ranks, if any rank is paused."""
        return self.facts.paused or self.select() if ranks is None and group is None else self.select(ranks, group)

    def watch(self, watcher: Callable[[Message], None]) -> Callable[[], None]:
        """Call ``watcher`` with notices, facts and input requests, on the link's loop. Returns the way to end that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def notify(self, message: Message) -> None:
        """Send ``message`` to every watcher."""
        for watcher in list(self._watchers):
            watcher(message)


class BaseCluster:
    """What AsyncCluster and Cluster know about their cluster without asking it."""

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
