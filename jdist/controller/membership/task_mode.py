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

TaskMode = Literal["node", "rank"]


def refusal(settings: Settings, world: World, task: LauncherTask | None, nproc: int = 0) -> str:
    """Why an agent started so, for ``nproc`` ranks, has no place, as the first agent has decided; "" if it has one."""
    if world.ranks:
        return ""  # whoever comes now takes the place of one that is gone, if there is such a place
    if not world.nodes:
        world.nnodes = settings.nnodes
    mode = _mode(settings, task)
    if task is not None and mode is None:
        nodes = f"{settings.nnodes} node{'s' * (settings.nnodes > 1)}"
        counts, size = "+".join(map(str, settings.nproc_per_node)), _world_size(settings)
        ranks = f" of {counts} ranks" if counts else ""
        ways = f"start {settings.nnodes} (one a node)" + (f" or {size} (one a rank)" if size else "")
        return f"{task.launcher} started {task.size} tasks; cluster {settings.name} waits for {nodes}{ranks}: {ways}"
    if task is not None and mode == "rank" and nproc > 1:
        return f"{task.launcher} started {task.size} tasks, one for each rank; leave out -n {nproc}"
    if task is not None and mode == "rank" and not world.nodes:
        world.nnodes = task.size
        return ""
    if world.nodes and (mode == "rank") != world.is_by_task:
        return _mixture(settings.name, next(iter(world.nodes.values())), task)
    return ""


def is_rank(settings: Settings, world: World, task: LauncherTask | None) -> bool:
    """Whether the task is one rank. Asked of one that was not refused."""
    return task is not None and (world.is_by_task if world.ranks else _mode(settings, task) == "rank")


def _mode(settings: Settings, task: LauncherTask | None) -> TaskMode | None:
    if task is None or task.size == settings.nnodes:
        return "node"
    return "rank" if task.size == _world_size(settings) else None


def _world_size(settings: Settings) -> int:
    """As it was asked for; 0 if each node says."""
    counts, nnodes = settings.nproc_per_node, settings.nnodes
    return sum(counts) if len(counts) == nnodes else counts[0] * nnodes if counts else 0


def _mixture(cluster: str, first: Node, task: LauncherTask | None) -> str:
    if task is None or not first.is_task:
        by = f"{task.launcher} started it as one of {task.size} ranks" if task else "it came as a whole node"
    else:
        by = f"{task.launcher} started it as one of {task.size} nodes"
    there = "as one rank" if first.is_task else "as a whole node"
    return f"{by}, and {first.name} is in cluster {cluster} {there}: start all in one way, or stop what is there first"


def find_hosts(world: World) -> None:
    """Which tasks are on one host: as the launcher numbers these, else by name and network, by their first ranks."""
    tasks = [(node, node.task) for _, node in sorted(world.nodes.items()) if node.task is not None]
    if len(tasks) < len(world.nodes):
        return
    hosts = [task.node_rank if task.node_rank >= 0 else (n.facts.hostname, n.facts.network) for n, task in tasks]
    for (node, _), host in zip(tasks, hosts, strict=True):
        node.host = host if isinstance(host, int) else hosts.index(host)
