"""Attachment: the link to a cluster, what the cluster last said about itself, and who watches what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jdist.client.history import History
from jdist.client.link import Link
from jdist.client.values.carrier import Carrier
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.status import ClusterFacts
from jdist.core.ranks import RankSet
from jdist.core.topology import Mesh, Topology

Ranks = str | int | Iterable[int] | None
"""As RankSet.parse reads it, one rank, several, or None for all."""


class Attachment:
    """A cluster that a client is attached to, or not yet; every other part of AsyncCluster builds on it."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._carrier: Carrier | None = None
        self._watchers: list[Callable[[Message], None]] = []
        self._history = History()

    def _adopt(self, link: Link) -> None:
        self._link = link
        self._carrier = Carrier(link)

    @property
    def link(self) -> Link:
        """The connection. Raises UsageError before start or attach."""
        if self._link is None:
            raise UsageError("this cluster is not attached; use start() or attach()")
        return self._link

    @property
    def is_attached(self) -> bool:
        return self._carrier is not None

    @property
    def carrier(self) -> Carrier:
        """Moves values."""
        if self._carrier is None:
            raise UsageError("this cluster is not attached; use start() or attach()")
        return self._carrier

    @property
    def history(self) -> History:
        """What this client has asked of the ranks, in order; ``jdist.export`` makes a script of it."""
        return self._history

    @property
    def facts(self) -> ClusterFacts:
        """What the controller last said about the cluster."""
        facts = self.link.facts
        if facts is None:
            raise UsageError("the cluster has not said anything about itself yet")
        return facts

    @property
    def name(self) -> str:
        return self.link.connection.name

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
        """Host names by node rank; "" for a node that is not here."""
        topology = self.topology
        return [topology.host_of_node(n) for n in range(topology.nnodes)]

    @property
    def groups(self) -> dict[str, list[int]]:
        """Named groups, and the mesh's dimensions as ``name=index``."""
        return {n: list(r) for n, r in self.facts.groups.items()}

    @property
    def mesh(self) -> Mesh | None:
        return None if self.facts.mesh is None else Mesh(*self.facts.mesh)

    @property
    def generation(self) -> int:
        """How many times the world's process group has been formed."""
        return self.facts.generation

    @property
    def backend(self) -> str:
        return self.facts.backend

    def select(self, ranks: Ranks = None, group: str | None = None) -> tuple[int, ...]:
        """Ranks from what a user wrote. Raises UsageError naming what is wrong."""
        if group is not None:
            return tuple(RankSet.parse(group, self.topology, self.mesh, self.facts.groups))
        if ranks is None:
            return tuple(self.ranks)
        text = ranks if isinstance(ranks, str) else str(ranks) if isinstance(ranks, int) else ",".join(map(str, ranks))
        return tuple(RankSet.parse(text, self.topology, self.mesh, self.facts.groups))

    def watch(self, watcher: Callable[[Message], None]) -> Callable[[], None]:
        """``watcher`` gets notices, facts and input requests, on the link's loop; returns the way to end that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def _tell(self, message: Message) -> None:
        for watcher in list(self._watchers):
            watcher(message)

    def __repr__(self) -> str:
        facts = self._link.facts if self._link is not None else None
        if facts is None:
            return f"<{type(self).__name__}, not attached>"
        size = f"{self.world_size} ranks on {self.topology.nnodes} nodes"
        return f"<{type(self).__name__} {facts.name}: {size}, {facts.backend}, {facts.phase}>"
