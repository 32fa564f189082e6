"""The interface of every way to start agents on nodes, and of the form that a browser shows for one.

``CONTRIBUTING.md`` tells how to add one.
"""

import asyncio
import hashlib
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from importlib.metadata import entry_points
from typing import ClassVar, Literal

import msgspec
from msgspec import Struct

from jdist.core.errors import UsageError, nearest
from jdist.core.settings import Host, Settings

ENTRY_POINTS = "jdist.launchers"
_NAME_LENGTH = 24  # Characters of the cluster's name in a label, to which a scheduler appends more.

# Patterns of options' values, as Python and JavaScript understand them alike.
WORD = r"\S+"
COUNT = r"[1-9]\d{0,5}"
AMOUNT = r"\d{1,6}(\.\d{1,4})?"
TIME_LIMIT = r"(\d+-)?\d+(:\d{1,2}){0,2}|UNLIMITED|unlimited|INFINITE|infinite"  # sbatch's
TYPED_COUNT = r"([\w.-]+:)?\d+(,[\w.-]+:\d+)*"  # ``4``, ``a100:2``, ``a100:2,v100:1``


class LauncherOption(Struct, frozen=True):
    """An option among the user's words after ``--``, with a field of its own."""

    flag: str  # ``--partition``; its value is the next word.
    label: str
    example: str = ""
    note: str = ""
    pattern: str = ""  # A regular expression that the whole value matches; "": anything.


class LauncherForm(Struct, frozen=True):
    """The fields besides those that every launcher has: ranks per node, backend and name."""

    hosts: Literal["", "optional", "required"] = ""  # Whether hosts can be named; if required, they say how many nodes.
    nodes: str = "1"  # How many nodes there are where the user leaves that open.
    options: tuple[LauncherOption, ...] = ()
    arguments: str = "further arguments of the launcher"  # What other words it takes; "": none.
    cannot_add: str = ""  # Why no node can be added with it to a running cluster; "" if that is possible.
    problem: str = ""  # Why this launcher cannot be used here; "" if nothing is known against it.


class LaunchPlan(Struct, frozen=True):
    """What a launcher is to launch."""

    settings: Settings  # The cluster's settings, completed by `Launcher.complete`.
    log: str  # File (mode 0600) for the agents' own output.
    first: int = 0  # Lowest node rank to launch; more than 0 for a node that is added to a running cluster.
    nnodes: int = 0  # Number of nodes to launch; 0: all nodes of the cluster.
    host: Host | None = None  # The host that the user named for a node to add.
    controller: int = 0  # Process id of the controller if it is on this host, in whose place agents here are started.

    @property
    def node_ranks(self) -> range:
        """Node ranks to launch."""
        return range(self.first, self.first + (self.nnodes or self.settings.nnodes))

    @property
    def label(self) -> str:
        """Label of everything that a scheduler holds for the cluster, such as ``jdist-c1-5d41402a``.

        A cluster's name is unique among the clusters of one user on one host only, and a scheduler serves many users
        and hosts. The label tells those apart and follows from the plan alone, so any client on the controller's host
        finds what another client has started. Lower-case letters, digits and ``-``, at most 39 characters.
        """
        where = f"{socket.gethostname()}\0{self.log}\0{self.settings.name}"
        own = re.sub(r"[^a-z0-9]+", "-", self.settings.name.lower())[:_NAME_LENGTH].strip("-")
        digest = hashlib.sha256(where.encode()).hexdigest()[:8]
        return "-".join(filter(None, ("jdist", own, digest)))


class Launcher(ABC):
    """One launch. The client makes one when it starts a cluster or adds a node, and again when it stops one.

    A launcher owns the processes, connections and tasks that its launch needs until :meth:`end`.
    """

    is_remote: ClassVar[bool] = True  # Its nodes may be other machines: the controller listens for them.
    form: ClassVar[LauncherForm] = LauncherForm()  # The fields of a form that starts a cluster.

    def __init__(self, plan: LaunchPlan):
        self.plan = plan
        # Names of the nodes, as their agents reported them from JDIST_HOST, by current node rank. Set before
        # `relaunch`. Node ranks change when nodes are dropped or removed; `plan` has those of the start.
        self.node_names: tuple[str, ...] = ()

    def name_of(self, node_rank: int) -> str:
        """The node's name in :attr:`node_names`; "" if it is unknown."""
        return self.node_names[node_rank] if node_rank < len(self.node_names) else ""

    def host_of(self, node_rank: int, hosts: Sequence[Host]) -> Host | None:
        """Host of a node that was launched before on one of ``hosts``, or was added; None if it is unknown."""
        if name := self.name_of(node_rank):
            return next((h for h in hosts if h.name == name), Host(name))
        is_as_at_start = len(self.node_names) in (0, len(hosts))
        return hosts[node_rank] if is_as_at_start and node_rank < len(hosts) else None

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """Fill in what the user left open (``nnodes`` 0), before anything is started. Raises UsageError."""
        if settings.hosts:
            raise UsageError(f"--hosts and --hostfile are for --launcher ssh and mpi, not for {settings.launcher}")
        return settings if settings.nnodes else msgspec.structs.replace(settings, nnodes=1)

    @abstractmethod
    async def launch(self, join_line: Awaitable[str]) -> None:
        """Start the agents. Raises LaunchError.

        ``join_line`` resolves once the controller listens; do what does not need it before. It holds keys: pass it to
        ``jdist join -`` on standard input or in a file of mode 0600, never in argv or in the environment.
        """

    @abstractmethod
    def failures(self) -> dict[int, str]:
        """Why launched nodes have ended already, by node rank. Polled while the client waits for nodes."""

    def describe(self) -> str:
        """What the launch waits for, such as "job 4711 is pending: Resources". Contains no secret.

        Shown while a start waits, and in the error of a start that timed out.
        """
        return ""

    def instructions(self) -> str:
        """What the user has to do for the nodes to join. May contain the join line, so it is shown to the user only."""
        return ""

    async def release(self) -> None:  # noqa: B027 — most hold nothing
        """Release what nodes that have joined do not need. Called when the world is formed."""

    async def relaunch(self, node_rank: int, join_line: str) -> bool:  # noqa: ARG002 — for those that can
        """Start another agent for a node whose agent is gone; False if this launcher cannot. Raises LaunchError."""
        return False

    @abstractmethod
    async def end(self) -> None:
        """End what was launched and never joined. Called when a start fails, and at the end."""

    async def remove_leftovers(self) -> None:  # noqa: B027 — most leave nothing
        """Remove what a scheduler still holds for this cluster, which has stopped. Raises LaunchError.

        Called by the client that stopped the cluster, on a launcher that may have launched nothing itself: what there
        is to remove must follow from the plan.
        """


def join_words(node_rank: int, *, fork: bool) -> list[str]:
    """Arguments of ``jdist`` for a node's agent, which reads the join line on standard input."""
    return ["join", "--node-rank", str(node_rank), *([] if fork else ["--no-fork"]), "-"]


def resolved(line: str) -> asyncio.Future[str]:
    """A join line that is known already, for what awaits one."""
    known: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    known.set_result(line)
    return known


def poll_pause(waited: float) -> float:
    """Seconds until a scheduler is asked again, after so many seconds of waiting: from 1 to 15."""
    return min(15.0, max(1.0, waited / 20))


def find_launcher(name: str) -> type[Launcher]:
    """The launcher registered under ``name``. Raises UsageError naming the nearest."""
    found = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise UsageError(f"there is no launcher {name!r}{nearest(name, found)}")
    try:
        loaded = found[name].load()
    except ImportError as e:
        raise UsageError(
            f"launcher {name} needs a package that is not installed ({e}): pip install 'jdist[{name}]'"
        ) from e
    if not (isinstance(loaded, type) and issubclass(loaded, Launcher)):
        raise UsageError(f"launcher {name!r} ({found[name].value}) is not a jdist Launcher")
    return loaded
