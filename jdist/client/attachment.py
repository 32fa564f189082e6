"""Attachment: a client's link to one cluster, which the parts of AsyncCluster share."""

import asyncio
import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Awaitable, Callable, Iterable

from jdist.client.history import History
from jdist.client.link import Link
from jdist.client.metrics.logged import KeptMetrics
from jdist.core.errors import UsageError
from jdist.core.import_path import ImportPath, origin_of, split, this_interpreter
from jdist.core.messages.base import Message
from jdist.core.messages.code import UseImportPath
from jdist.core.messages.runs import InputRequest
from jdist.core.messages.saving import SaveEnded
from jdist.core.messages.status import ClusterFacts, Notice, RunsChanged, Stopped
from jdist.core.ranks import RankSet
from jdist.core.topology import Mesh

Ranks = str | int | Iterable[int] | None  # Text for RankSet.parse, one rank, several ranks, or None for all.


class Attachment:
    """The current link of a client, which is replaced when the controller is; its watchers and its history."""

    def __init__(self) -> None:
        self.current: Link | None = None  # The link, also after it was lost; None before the client attached.
        self.history = History()
        self.metrics = KeptMetrics()
        self.modules: dict[str, str] = {}  # Directories of this process's top-level modules that are the user's own.
        self._import_path: UseImportPath | None = None  # As it was sent last on the current link.
        self._before_cells: list[Callable[[], Awaitable[None]]] = []
        self._preparing = asyncio.Lock()
        self._routes: list[Callable[[Message], None]] = []
        self._watchers: list[Callable[[Message], None]] = []
        self._closers: list[Callable[[], object]] = []

    def adopt(self, link: Link) -> None:
        self.current = link
        self._import_path = None

    def on_close(self, closer: Callable[[], object]) -> None:
        """Call ``closer`` before the link is closed, perhaps more than once."""
        self._closers.append(closer)

    def close(self) -> None:
        """Close the link and what parts of the cluster hold; may be called again."""
        for closer in self._closers:
            closer()
        if self.current is not None:
            self.current.close()

    @property
    def link(self) -> Link:
        """The connection to the controller. Raises UsageError before start or attach."""
        if self.current is None:
            raise UsageError("this cluster is not attached; use start() or attach()")
        return self.current

    def before_cells(self, update: Callable[[], Awaitable[None]]) -> None:
        """Wait for ``update`` before a cell is sent."""
        self._before_cells.append(update)

    async def prepare_cell(self) -> None:
        """Have ranks find modules where this process does, as they are now, before a cell is sent."""
        async with self._preparing:  # cells are sent in the order of their submission
            link = await self.link.current()
            with contextlib.suppress(FileNotFoundError):  # the working directory was removed
                path = split(sys.path, os.getcwd(), this_interpreter())
                self.modules = await asyncio.to_thread(_list_modules, path)
                message = UseImportPath(path, tuple(sorted(self.modules)))
                if message != self._import_path:
                    link.send(message)
                    self._import_path = message
            for update in self._before_cells:
                await update()

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

    def route(self, handler: Callable[[Message], None]) -> None:
        """Call ``handler`` with every message that answers no request, in order, before any watcher."""
        self._routes.append(handler)

    def receive(self, message: Message) -> None:
        """Pass a message of the link on to the parts of the cluster, and to watchers if it concerns them."""
        for handler in self._routes:
            handler(message)
        is_notice = isinstance(message, Notice) and not message.run
        if is_notice or isinstance(message, ClusterFacts | InputRequest | RunsChanged | SaveEnded | Stopped):
            self.notify(message)

    def watch(self, watcher: Callable[[Message], None]) -> Callable[[], None]:
        """Call ``watcher`` with notices, facts and input requests, on the link's loop. Returns the way to end that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def notify(self, message: Message) -> None:
        """Send ``message`` to every watcher."""
        for watcher in list(self._watchers):
            watcher(message)


def _list_modules(path: ImportPath) -> dict[str, str]:
    """The directory of each top-level module or folder in the path's entries, by its name."""
    found: dict[str, str] = {}
    for entry in path.entries:
        directory = origin_of(entry, path.directory)
        with contextlib.suppress(OSError), os.scandir(directory) as inside:
            for name in filter(None, (_module_name(each) for each in inside)):
                found.setdefault(name, directory)
    return found


def _module_name(entry: os.DirEntry[str]) -> str:
    """The name by which a file or folder is imported; "" if it cannot be."""
    suffix = next((s for s in importlib.machinery.all_suffixes() if entry.name.endswith(s)), "")
    name = entry.name.removesuffix(suffix)
    return name if name.isidentifier() and not name.startswith("__") and (suffix or entry.is_dir()) else ""
