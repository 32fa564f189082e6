"""Task mode: whether the tasks that a launcher has started are nodes, or ranks. Pure.

A cluster is started for so many nodes of so many ranks. A launcher that starts as many tasks as there are nodes has
started one on each, and each makes its node's ranks. One that starts as many as there are ranks has started the ranks:
each task is a place of one rank, which has the task's number, and its share of its host (cores, memory, GPUs) as the
launcher gave it. Any other number fits neither.
"""

from typing import Literal

from jdist.controller.model.world import Node, World
from jdist.core.messages.membership import LauncherTask
from jdist.core.settings import Settings

Kind = Literal["node", "rank"]


class TaskMode:
    """Knows what a task is in this cluster."""

    def __init__(self, settings: Settings, world: World):
        self._settings = settings
        self._world = world

    def refusal(self, task: LauncherTask | None, nproc: int = 0) -> str:
        """Why an agent that was started like this, for ``nproc`` ranks, has no place among those here; "" if it has.

        The first agent decides what the others are to be.
        """
        world = self._world
        if world.ranks:
            return ""  # whoever comes now takes the place of one that is gone, if there is such a place
        if not world.nodes:
            world.nnodes = self._settings.nnodes
        kind = self._kind(task)
        if task is not None and kind is None:
            return self._misfit(task)
        if task is not None and kind == "rank" and nproc > 1:
            return f"{task.launcher} started {task.size} tasks, one for each rank; leave out -n {nproc}"
        if task is not None and kind == "rank" and not world.nodes:
            world.nnodes = task.size
            return ""
        if world.nodes and (kind == "rank") != world.is_by_task:
            return self._mixture(task)
        return ""

    def is_rank(self, task: LauncherTask | None) -> bool:
        """Whether the task is one rank. Asked of one that was not refused."""
        if self._world.ranks:
            return task is not None and self._world.is_by_task
        return task is not None and self._kind(task) == "rank"

    def _kind(self, task: LauncherTask | None) -> Kind | None:
        if task is None or task.size == self._settings.nnodes:
            return "node"
        return "rank" if task.size == self._world_size else None

    @property
    def _world_size(self) -> int:
        """As it was asked for; 0 if each node says."""
        counts, nnodes = self._settings.nproc_per_node, self._settings.nnodes
        return sum(counts) if len(counts) == nnodes else counts[0] * nnodes if counts else 0

    def _misfit(self, task: LauncherTask) -> str:
        settings, size = self._settings, self._world_size
        nodes = f"{settings.nnodes} node{'s' * (settings.nnodes > 1)}"
        counts = "+".join(map(str, settings.nproc_per_node))
        ranks = f" of {counts} ranks" if counts else ""
        ways = f"start {settings.nnodes} (one a node)" + (f" or {size} (one a rank)" if size else "")
        return f"{task.launcher} started {task.size} tasks; cluster {settings.name} waits for {nodes}{ranks}: {ways}"

    def _mixture(self, task: LauncherTask | None) -> str:
        first = next(iter(self._world.nodes.values()))
        name = self._settings.name
        if task is None or not first.is_task:
            by = f"{task.launcher} started it as one of {task.size} ranks" if task else "it came as a whole node"
        else:
            by = f"{task.launcher} started it as one of {task.size} nodes"
        there = "as one rank" if first.is_task else "as a whole node"
        return f"{by}, and {first.name} is in cluster {name} {there}: start all in one way, or stop what is there first"


def find_hosts(world: World) -> None:
    """Which tasks are on one host: as the launcher numbers these, else by name and network, by their first ranks."""
    places = [world.nodes[n] for n in sorted(world.nodes)]
    if not all(n.task is not None for n in places):
        return
    keys = [_host(n) for n in places]
    for node, key in zip(places, keys, strict=True):
        node.host = key if isinstance(key, int) else keys.index(key)


def _host(node: Node) -> int | tuple[str, str]:
    says = node.task is not None and node.task.node_rank >= 0
    return node.task.node_rank if says and node.task else (node.facts.hostname, node.facts.network)
