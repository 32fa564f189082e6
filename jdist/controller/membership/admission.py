"""Admit nodes: assign each a place in the world or reject it, and decide whether launched tasks are ranks. Pure.

A cluster is started for a number of nodes with a number of ranks each. A launcher that starts as many tasks as there
are nodes has started one task on each node, and each makes its node's ranks. A launcher that starts as many tasks as
there are ranks has started the ranks: each task is a place of one rank, which has the task's number and the share of
the host (cores, memory, GPUs) that the launcher gave to the task. Any other number is rejected.
"""

from typing import Literal

from jdist.controller.membership.formation import Formation
from jdist.controller.membership.rank_loss import RankLoss
from jdist.controller.membership.resizing import Resizing
from jdist.controller.membership.takeover import Takeover
from jdist.controller.model.model import Model
from jdist.controller.model.world import Node, World
from jdist.controller.runs.saving import Autosaver
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.membership import (
    AgentHello,
    DropNodes,
    HeldGeneration,
    LauncherTask,
    Resized,
    StartWorker,
    Welcome,
)
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.status import Notice
from jdist.core.settings import Settings
from jdist.core.topology import MOST_ON_NODE


class Admission:
    """Gives nodes their places, in the order in which they come or as they request."""

    def __init__(
        self,
        model: Model,
        formation: Formation,
        rank_loss: RankLoss,
        resizing: Resizing,
        takeover: Takeover,
        autosaver: Autosaver,
    ):
        self._model = model
        self._autosaver = autosaver
        self._takeover = takeover
        self._formation = formation
        self._rank_loss = rank_loss
        self._resizing = resizing

    def handle_hello(self, agent: str, hello: AgentHello) -> None:
        """A node's agent says hello. With the last one, every rank gets its number and every node its welcome."""
        m = self._model
        if m.world.node_of_agent(agent) is not None:
            return
        self._takeover.record_hello(hello)
        misfit = task_refusal(m.settings, m.world, hello.task, hello.nproc)
        home = self._takeover.find(agent, hello.held)
        wanted = hello.task.rank if hello.task is not None and hello.node_rank < 0 else hello.node_rank
        wanted = wanted if home is None else home
        place = m.world.free_place(wanted)
        refusal = self._refusal(hello)
        if place is None and self._resizing.offer(agent, hello, refusal):
            return
        refusal = refusal or misfit or ("" if place is not None else self._no_place(wanted))
        if refusal or place is None:
            m.reject(agent, hello.facts.hostname, refusal)
            return
        old, node = m.world.nodes.get(place), self._node(place, agent, hello)
        refusal = self._lacks_gpus(node)
        if refusal:
            m.reject(agent, hello.facts.hostname, refusal)
            return
        is_awaited = self._takeover.awaits(place)
        m.world.nodes[place] = node
        if is_awaited and place == home:
            self.welcome(node, hello.held)
        elif old is not None:
            for number in m.world.topology.ranks_at(place):
                rank = m.world.ranks[number]  # the one that had its place is gone: its ranks are fresh
                m.world.ranks[number] = rank.replaced(max(rank.incarnation + 1, node.incarnation))
            self.welcome(node)
            self._rank_loss.mend()
            if is_awaited:
                self._takeover.take_place(place)
        elif m.world.is_complete:
            self.number()

    def number(self) -> None:
        """Every node is here: give each rank its number and each node its welcome."""
        world = self._model.world
        find_hosts(world)
        world.number_ranks()
        for node in world.nodes.values():
            self.welcome(node)

    def _node(self, place: int, agent: str, hello: AgentHello) -> Node:
        """The joining node, as it will be in its place."""
        m = self._model
        old = m.world.nodes.get(place)
        task = hello.task if is_rank(m.settings, m.world, hello.task) else None
        if old is not None or task is not None:
            nproc = 1 if old is None else old.nproc
        else:
            counts = m.settings.nproc_per_node
            wanted = counts[place if len(counts) > 1 else 0] if counts else 0
            nproc = wanted or hello.nproc or hello.facts.gpus or 2
        node = Node(place, agent, hello.facts, nproc, m.now, task=task, host=None if old is None else old.host)
        if hello.held is not None:
            node.incarnation = 1 + max((r.incarnation for r in hello.held.workers), default=0)
        return node

    def _lacks_gpus(self, node: Node) -> str:
        """Why the backend that was asked for cannot reach this node's ranks; "" if it can, or that is unknown."""
        if "nccl" not in self._model.settings.backend:
            return ""
        needs = f"backend {self._model.settings.backend} needs a GPU for each rank"
        others = [n for n in self._model.world.nodes.values() if n.is_here and n.node_rank != node.node_rank]
        if node.has_gpus:
            bare = next((n for n in others if not n.facts.gpus), None)
            return f"{needs}: it has {node.facts.gpus}, and {bare.name}, which is here already, none" if bare else ""
        if node.task is not None and node.facts.gpus:
            return f"{needs}, and {node.task.local_size} tasks share its {node.facts.gpus}"
        if node.facts.gpus:
            return f"{needs}, and it has {node.facts.gpus} for {node.nproc}"
        # A node on which no NVIDIA device is seen may still have other GPUs: the other nodes decide.
        other = next((n for n in others if n.facts.gpus), None)
        return f"{needs}, and it has none; {other.name} has {other.facts.gpus}" if other is not None else ""

    def _refusal(self, hello: AgentHello) -> str:
        m, facts = self._model, hello.facts
        if hello.protocol != PROTOCOL or hello.version != m.version:
            return f"it has jdist {hello.version} (protocol {hello.protocol}), the controller {m.version} ({PROTOCOL})"
        if not facts.torch:
            return "torch is not installed there"
        if facts.torch_build == "CPU" and "nccl" in m.settings.backend:
            return (
                f"backend {m.settings.backend} was asked for, but torch {facts.torch} there was built for CPUs alone "
                "and has no nccl; use --backend gloo, or install a torch with CUDA there"
            )
        if not (0 <= hello.nproc <= MOST_ON_NODE and 0 <= facts.gpus <= MOST_ON_NODE):
            return f"a node has at most {MOST_ON_NODE} ranks"
        here = next((n for n in m.world.nodes.values() if n.is_here), None)
        if here is None:
            return ""
        other, n = here.facts, here.node_rank
        if other.python.split(".")[:2] != facts.python.split(".")[:2]:
            return f"it has Python {facts.python}, node {n} has {other.python}: values could not travel between them"
        if other.torch != facts.torch:
            return f"it has torch {facts.torch}, node {n} has {other.torch}: their groups may not agree"
        return ""

    def _no_place(self, wanted: int) -> str:
        world = self._model.world
        if world.is_complete:
            return f"all {world.nnodes} nodes of cluster {self._model.settings.name} are here already"
        if wanted < world.nnodes:
            return f"node rank {wanted} is taken by {world.nodes[wanted].facts.hostname}"
        return f"there is no node rank {wanted}: cluster {self._model.settings.name} has {world.nnodes} nodes, from 0"

    def welcome(self, node: Node, kept: HeldGeneration | None = None) -> None:
        """Give the node its place, with fresh workers or those that it kept."""
        m = self._model
        ranks = [m.world.ranks[r] for r in m.world.topology.ranks_at(node.node_rank)]
        welcome = Welcome(
            liveness_name=m.new_liveness_name(node.agent),
            log_level=dict(m.settings.env).get("JDIST_LOG", ""),
            node_rank=node.node_rank,
            nnodes=m.world.nnodes,
            nproc=node.nproc,
            first_rank=m.world.topology.first_rank(node.node_rank),
            agent_grace=m.settings.carried_grace if node.facts.is_carried else m.settings.agent_grace,
            end_grace=m.settings.end_grace,
            output_lines=m.settings.output_lines,
            warm=m.settings.warm,
            address=_address(node, m.world),
            is_task=node.is_task,
            keeps_launcher=m.settings.backend == "mpi",
            workers=() if kept else tuple(StartWorker(r.worker, r.rank, r.incarnation) for r in ranks),
        )
        m.send(node.agent, welcome)
        for path in m.import_paths.values():
            m.send(node.agent, path)
        self._autosaver.greet(node)
        if node.node_rank == 0:
            self._formation.start_store(kept.store if kept else None)
        if kept is not None:
            self._takeover.adopt(node, kept)

    def handle_drop_nodes(self, client: str, message: DropNodes) -> None:
        """Form the world without nodes that the client cannot launch: those that are here close up in their order."""
        m = self._model
        reason = self._refusal_to_drop(message)
        if reason:
            m.refuse(client, message.request, reason)
            return
        world, missing = m.world, m.world.missing_places()
        m.left_out = tuple(f"node {n} was left out: {message.nodes[n]}" for n in missing)
        world.close_up()
        here = ", ".join(f"node {n.node_rank} is {n.facts.hostname}" for n in world.nodes.values())
        notes = (*m.left_out, f"the world is formed with {world.nnodes} of {world.nnodes + len(missing)} nodes: {here}")
        m.broadcast(Notice("; ".join(notes)))
        self.number()
        m.send(client, RankReply(message.request, -1, Resized(len(world.ranks), {}, (), notes)))

    def _refusal_to_drop(self, message: DropNodes) -> str:
        m = self._model
        if m.world.ranks:
            return "all nodes have come; ranks that are not wanted can be removed from the world"
        if m.world.is_by_task:
            return "each task that was started is a rank, and their number is fixed"
        missing = m.world.missing_places()
        awaited = [n for n in missing if n not in message.nodes]
        if awaited:
            return f"node {awaited[0]} is still awaited"
        came = [n for n in message.nodes if n not in missing]
        if came:
            return f"node {came[0]} is here"
        here, least = m.world.nnodes - len(missing), m.settings.min_nodes
        if not least or here < least:
            return f"{here} of {m.world.nnodes} nodes are here; at least {least or m.world.nnodes} are needed"
        return ""


def _address(node: Node, world: World) -> str:
    """Where others meet a node on the controller's own host: where they reach the controller. "" for one elsewhere."""
    # Seen from that host, each of its addresses is as good as another. A node elsewhere knows its own.
    if node.facts.address != node.facts.reached:
        return ""
    ways = [n.facts.reached for n in world.nodes.values() if n.facts.reached not in ("", n.facts.address)]
    return max(ways, key=ways.count, default="")


TaskMode = Literal["node", "rank"]


def task_refusal(settings: Settings, world: World, task: LauncherTask | None, nproc: int = 0) -> str:
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
