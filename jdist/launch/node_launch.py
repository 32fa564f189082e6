"""Node launch: nodes that are started one by one over a network, all at once, and how far each has come."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable
from typing import ClassVar, Generic, TypeVar

from jdist.core.errors import LaunchError
from jdist.launch.base import Launcher, LaunchPlan

_log = logging.getLogger("jdist.launch")


class NodeLaunch:
    """The launch of one node: where it is launched, its progress, and the reason if it failed."""

    def __init__(self, name: str, stage: str):
        self.name = name
        self.stage = stage
        self.failure = ""
        self.task: asyncio.Task[None] | None = None


N = TypeVar("N", bound=NodeLaunch)


class NodeLauncher(Launcher, Generic[N]):
    """Launches every node in a task of its own. A node that fails does not hold up the others."""

    scheme: ClassVar[str]  # What the progress reports begin with.

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self.nodes: dict[int, N] = {}  # By node rank.

    @abstractmethod
    def make_node(self, node_rank: int) -> N:
        """What is known of a node of the plan before its launch. Raises LaunchError."""

    @abstractmethod
    async def bring(self, node: N, join_line: asyncio.Future[str]) -> None:
        """Start the node's agent and send it the join line. Raises LaunchError."""

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Start all nodes in background tasks; ``describe`` and ``failures`` report their progress."""
        line = asyncio.ensure_future(join_line)
        for node_rank in self.plan.node_ranks:
            self.begin(node_rank, self.make_node(node_rank), line)
        await line

    def begin(self, node_rank: int, node: N, join_line: asyncio.Future[str]) -> asyncio.Task[None]:
        """Start the task of a node."""
        self.nodes[node_rank] = node
        node.task = asyncio.get_running_loop().create_task(self._bring(node, join_line))
        return node.task

    async def _bring(self, node: N, join_line: asyncio.Future[str]) -> None:
        try:
            await self.bring(node, join_line)
        except Exception as e:  # else the start would wait for it for ever
            node.failure, node.stage = str(e) if isinstance(e, LaunchError) else repr(e), "failed"
            if not isinstance(e, LaunchError):
                _log.exception("node %s could not be started", node.name)

    def failures(self) -> dict[int, str]:
        """Failures of all nodes, reported together once the outcome of every node is known."""
        if not all(node.task is None or node.task.done() for node in self.nodes.values()):
            return {}
        return {n: f"{node.name}: {node.failure}" for n, node in self.nodes.items() if node.failure}

    def describe(self) -> str:
        """Such as "ssh: a started; b connecting; c failed: Permission denied"."""
        stages = [f"{n.name} {n.stage}" + (f": {n.failure}" if n.failure else "") for n in self.nodes.values()]
        return f"{self.scheme}: {'; '.join(stages)}"

    async def end(self) -> None:
        """Give up launches that are under way."""
        tasks = [node.task for node in self.nodes.values() if node.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
