"""Topology: which ranks are on which node, and meshes over them."""

import math
from collections.abc import Sequence
from typing import Self

from msgspec import Struct

from jdist.core.errors import UsageError


class Mesh(Struct, frozen=True):
    """Named dimensions over the world's ranks in row-major order, as ``init_device_mesh`` lays them."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, world_size: int) -> Self:
        """``"dp=2,tp=2"`` for a world of 4. Raises UsageError when the sizes do not multiply to the world."""
        names: list[str] = []
        sizes: list[int] = []
        for part in text.split(","):
            name, eq, size = (p.strip() for p in part.partition("="))
            if not eq or not name.isidentifier() or not size.isdecimal() or len(size) > 9 or int(size) < 1:
                raise UsageError(f"a mesh is written dp=2,tp=2 (name=size, …), not {text[:60]!r}")
            if name in ("node", "world", "all"):
                raise UsageError(f"a mesh dimension cannot be called {name!r}, which names ranks already")
            if name in names:
                raise UsageError(f"mesh dimension {name!r} is named twice in {text!r}")
            names.append(name)
            sizes.append(int(size))
        if math.prod(sizes) != world_size:
            product = " x ".join(map(str, sizes))
            raise UsageError(f"mesh {text}: {product} = {math.prod(sizes)} ranks, but the world has {world_size}")
        return cls(tuple(names), tuple(sizes))

    def coordinate(self, rank: int, name: str) -> int:
        """The rank's index along the dimension ``name``."""
        i = self.names.index(name)
        return rank // math.prod(self.sizes[i + 1 :]) % self.sizes[i]

    def __str__(self) -> str:
        return ",".join(f"{n}={s}" for n, s in zip(self.names, self.sizes, strict=True))


class Topology(Struct, frozen=True):
    """Ranks per place, in the places' order; rank numbers are dense, as torchrun counts them.

    A *place* is what one agent holds: a node, or a task where a launcher has started an agent for each (see
    agent/node.py). In that case several places may be on one node, and a rank's place has the rank's number.
    """

    nproc_per_node: tuple[int, ...]  # Number of ranks at each place.
    hostnames: tuple[str, ...] = ()  # Host name of each place.
    node_of: tuple[int, ...] = ()  # The node that each place is on; empty if each place is a node.

    @property
    def _nodes(self) -> Sequence[int]:
        return self.node_of or range(len(self.nproc_per_node))

    @property
    def nnodes(self) -> int:
        return len(set(self._nodes))

    @property
    def world_size(self) -> int:
        return sum(self.nproc_per_node)

    # ------------------------------------------------------------ places

    def first_rank(self, place: int) -> int:
        return sum(self.nproc_per_node[:place])

    def place(self, rank: int) -> int:
        left = rank
        for place, count in enumerate(self.nproc_per_node):
            if 0 <= left < count:
                return place
            left -= count
        raise IndexError(f"there is no rank {rank}: the world has {self.world_size}")

    def ranks_at(self, place: int) -> tuple[int, ...]:
        first = self.first_rank(place)
        return tuple(range(first, first + self.nproc_per_node[place]))

    def hostname(self, place: int) -> str:
        return self.hostnames[place] if place < len(self.hostnames) else "?"

    # ------------------------------------------------------------ nodes

    def node_rank(self, rank: int) -> int:
        return self._nodes[self.place(rank)]

    def local_rank(self, rank: int) -> int:
        return self.ranks_on(self.node_rank(rank)).index(rank)

    def ranks_on(self, node_rank: int) -> tuple[int, ...]:
        return tuple(r for place, node in enumerate(self._nodes) if node == node_rank for r in self.ranks_at(place))

    def host_of(self, rank: int) -> str:
        """Name of the rank's host; "?" if unknown."""
        return self.hostname(self.place(rank))

    def host_of_node(self, node_rank: int) -> str:
        """Name of a node's host; "" if the node is not attached."""
        places = zip(self._nodes, self.hostnames, strict=False)
        return next((host for node, host in places if node == node_rank and host), "")

    def where(self, rank: int) -> str:
        """``"rank 2 (node 1, hostname)"`` for messages."""
        host = f", {self.host_of(rank)}" if self.place(rank) < len(self.hostnames) else ""
        return f"rank {rank} (node {self.node_rank(rank)}{host})"


MOST_NODES = 4096
MOST_ON_NODE = 4096  # Ranks on one node.
MOST_RANKS = 1 << 16  # In a world.


def check_size(nnodes: int, counts: Sequence[int]) -> None:
    """Raise UsageError for more nodes or ranks than any cluster has. ``counts``: one for all nodes, or one for each."""
    ranks = sum(counts) if len(counts) > 1 else sum(counts) * nnodes
    for what, number, most in (
        ("nodes", nnodes, MOST_NODES),
        ("ranks on one node", max(counts, default=0), MOST_ON_NODE),
        ("ranks", ranks, MOST_RANKS),
    ):
        if number > most:
            raise UsageError(f"{number:,} {what} are more than jdist starts; at most {most:,}")


def parse_nproc(text: str, nnodes: int) -> tuple[int, ...]:
    """``"2"`` for 3 nodes → (2, 2, 2); ``"2,1"`` → (2, 1). Raises UsageError when lengths disagree."""
    try:
        counts: Sequence[int] = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--nproc-per-node takes a number, or one per node like 2,1; not {text!r}") from None
    if any(c < 1 for c in counts):
        raise UsageError(f"--nproc-per-node {text}: a node has at least one rank")
    check_size(nnodes, counts)
    if len(counts) == 1:
        return tuple(counts) * nnodes
    if nnodes not in (1, len(counts)):
        raise UsageError(f"--nproc-per-node {text} names {len(counts)} nodes, but --nnodes is {nnodes}")
    return tuple(counts)
