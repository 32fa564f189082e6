"""Hosts that a user names with ``--hosts`` and ``--hostfile``, and nodes that are started on machines one by one.

The nodes are started all at once over a network, and each says how far it has come.
"""

import asyncio
import logging
import re
from abc import abstractmethod
from collections.abc import Awaitable
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from jdist.core.errors import LaunchError, UsageError
from jdist.core.settings import Host
from jdist.launch.base import Launcher, LaunchPlan

_ENTRY = re.compile(r"^(?P<name>(?:[^@\s:\[\]]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^@\s:\[\]]+))(?::(?P<slots>\d{1,6}))?$")
_WORDS = ("slots", "max_slots", "max-slots", "python", "directory")
_log = logging.getLogger("jdist.launch")


def parse_hosts(text: str) -> tuple[Host, ...]:
    """``a:2,user@b:2,[fe80::1]:4``: hosts in their order, each with its number of ranks or none. Raises UsageError."""
    hosts = []
    for entry in filter(None, (e.strip() for e in text.split(","))):
        found = _ENTRY.match(entry)
        if found is None:
            raise UsageError(f"--hosts {entry!r}: write HOST or HOST:RANKS, as in a:2,b:2; IPv6 in brackets")
        if found["slots"] is not None and int(found["slots"]) < 1:
            raise UsageError(f"--hosts {entry!r}: a node has at least one rank")
        hosts.append(Host(found["name"].replace("[", "").replace("]", ""), int(found["slots"] or 0)))
    return _checked(hosts, "--hosts")


def read_hostfile(path: str | Path) -> tuple[Host, ...]:
    """The hosts of an OpenMPI hostfile, with ``python=`` and ``directory=`` for the agents. Raises UsageError."""
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"--hostfile {path} cannot be read: {e}") from None
    entries = [(number, line.partition("#")[0].split()) for number, line in enumerate(lines, 1)]
    hosts = [_host(words, f"--hostfile {path}, line {number}") for number, words in entries if words]
    return _checked(hosts, f"--hostfile {path}")


def _host(words: list[str], where: str) -> Host:
    given: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in _WORDS:
            raise UsageError(f"{where}: {word!r} is none of slots=N, python=PATH, directory=PATH")
        given[key] = value
    slots = given.get("slots", "0")
    if not slots.isdecimal() or ("slots" in given and int(slots) < 1):
        raise UsageError(f"{where}: slots={slots} is no number of ranks")
    return Host(words[0], int(slots), given.get("python", ""), given.get("directory", ""))


def _checked(hosts: list[Host], where: str) -> tuple[Host, ...]:
    if not hosts:
        raise UsageError(f"{where} names no host")
    names = [h.name for h in hosts]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise UsageError(f"{where} names {twice} twice; say {twice}:RANKS once, with all of its ranks")
    return tuple(hosts)


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
