"""Launcher: what every way of getting agents onto nodes has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from importlib.metadata import entry_points
from typing import ClassVar

import msgspec
from msgspec import Struct

from jdist.core.errors import UsageError, nearest
from jdist.core.settings import Settings

ENTRY_POINTS = "jdist.launchers"


class Plan(Struct, frozen=True):
    """What is to be launched."""

    settings: Settings
    """The cluster's, with nothing left open."""
    log: str
    """A file for what agents say about themselves (mode 0600)."""
    first: int = 0
    """Node rank of the first of them; more than 0 for a node that a running cluster gets in addition."""
    nnodes: int = 0
    """How many; 0: all of the cluster's."""

    @property
    def node_ranks(self) -> range:
        """Of the nodes that are to be launched."""
        return range(self.first, self.first + (self.nnodes or self.settings.nnodes))


class Launcher(ABC):
    """One launch. Called by the client while it starts a cluster, or adds a node to it.

    Holds whatever must be watched or ended.
    """

    is_remote: ClassVar[bool] = True
    """Whether its nodes may be other machines: then the controller listens on this host's addresses."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.names: tuple[str, ...] = ()
        """What nodes are called whose agents said it (``JDIST_HOST``), by node rank as they are numbered now.

        Known to :meth:`relaunch`. Numbers change when nodes are left out or removed; ``plan`` has those of the start.
        """

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """The settings with what the user left open (``nnodes`` 0) filled in, before anything is started.

        Raises UsageError for what cannot be started with this launcher.
        """
        if settings.hosts:
            raise UsageError(f"--hosts and --hostfile are for --launcher ssh and mpi, not for {settings.launcher}")
        return settings if settings.nnodes else msgspec.structs.replace(settings, nnodes=1)

    @abstractmethod
    async def launch(self, join_line: Awaitable[str]) -> None:
        """Get agents started. Raises LaunchError.

        ``join_line`` is known as soon as the controller listens; what can be done before that should be. It holds keys:
        it goes to ``jdist join -`` on its standard input or in a file of mode 0600, never into argv or the environment.
        """

    @abstractmethod
    def failures(self) -> dict[int, str]:
        """Why nodes that were launched have ended already, by node rank. Called while the client waits for nodes."""

    def describe(self) -> str:
        """What the launch waits for, in some words ("job 4711 is pending: Resources"); shown while the start waits."""
        return ""

    def waits_for(self) -> str:
        """The same for the error of a start that has waited too long; no secret stands in it."""
        return ""

    async def let_go(self) -> None:  # noqa: B027 — most hold nothing
        """Give up whatever nodes that have joined do without. Called when the world stands."""

    async def relaunch(self, node_rank: int, join_line: str) -> bool:  # noqa: ARG002 — for those that can
        """Start another agent for a node whose own is gone; False where this launcher cannot. Raises LaunchError."""
        return False

    @abstractmethod
    async def end(self) -> None:
        """End what was launched and never joined. Called when a start fails, and at the end."""

    async def clear(self) -> None:  # noqa: B027 — most leave nothing
        """Remove what an engine still holds for this cluster, which is over. Raises LaunchError.

        Called by whoever stopped it, on a launcher that may have launched nothing itself: what there is to remove
        follows from the plan.
        """


def find_launcher(name: str) -> type[Launcher]:
    """The launcher registered under ``name``. Raises UsageError naming the nearest."""
    found = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise UsageError(f"there is no launcher {name!r}{nearest(name, found)}")
    try:
        loaded = found[name].load()
    except ImportError as e:
        raise UsageError(f"launcher {name} needs a package that is not here ({e}): pip install 'jdist[{name}]'") from e
    if not (isinstance(loaded, type) and issubclass(loaded, Launcher)):
        raise UsageError(f"launcher {name!r} ({found[name].value}) is no jdist Launcher")
    return loaded
