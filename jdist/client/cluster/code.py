"""Code: local files are brought to every node, also to one that comes later, and kept up to date while watched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from watchfiles import awatch

from jdist.client.cluster.membership import Membership
from jdist.client.history import Remark
from jdist.client.sync.tree import Source
from jdist.client.sync.upload import OnProgress, Sender, Synced
from jdist.core.errors import ConnectionLost, JdistError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.remedy import Remedy
from jdist.core.source_tree import SourceTree


class Code(Membership):
    """The code that this client has synced."""

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[str, Source] = {}
        self._last: dict[str, SourceTree] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._syncing = asyncio.Lock()
        self._seen_nodes: tuple[str, ...] = ()
        self._newcomers: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = None

    async def sync(
        self,
        path: str,
        *,
        exclude: Sequence[str] = (),
        watch: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Synced:
        """Copy a local file or folder to every node, what has changed only, and have every rank import from it.

        The copy is in a folder of the cluster's own that goes with it; what was deleted here is deleted there. A folder
        with an ``__init__.py`` is imported by its name, else what is in it is. Modules that are loaded already are read
        again before a rank's next cell, and what was imported from them is brought up to date. Left out are .git,
        __pycache__, what .gitignore files say, and ``exclude``, in the same syntax.
        With ``watch``, changes are synced as they happen until this client detaches, or syncs the path without it.
        Nodes and ranks that come later have the code, too. Raises UsageError naming node and file; nothing has been
        changed then.
        """
        source = Source(path, exclude)
        known = self._sources.get(source.name)
        if known is not None and known.path != source.path:
            raise UsageError(f"sync {path}: {known.path} is synced under the name {source.name} already; rename one")
        if known is not None and known.exclude == source.exclude:
            source = known  # it knows what has not changed
        await self._end_watch(source.name)
        if watch:
            self._watches[source.name] = asyncio.create_task(self._keep_in_sync(source))
            await asyncio.sleep(0)  # from here on nothing that changes is missed
        try:
            synced = await self._sync(source, on_progress)
        except BaseException:
            await self._end_watch(source.name)
            raise
        self._sources[source.name] = source
        self.history.add(Remark(f"{path} synced; a script imports from PYTHONPATH and its own folder"))
        if self._unlisten is None:
            self._seen_nodes = self.facts.hostnames
            self._unlisten = self.watch(self._listen)
        return synced

    async def _sync(self, source: Source, on_progress: OnProgress | None = None) -> Synced:
        async with self._syncing:
            tree = await asyncio.to_thread(source.list)
            facts = self.facts
            here = [n for n, name in enumerate(facts.hostnames) if name]
            if not here:
                raise UsageError("no node is here to be synced to")
            probe = self.carrier.probe
            sender = Sender(self.link, probe, source, facts.hostnames, on_progress or (lambda *_: None))
            try:
                synced = await sender.send(tree, here)
            except BaseExceptionGroup as e:
                raise _first(e) from e
            self._last[source.name] = tree
            return synced

    async def _keep_in_sync(self, source: Source) -> None:
        """A file that cannot be synced is told, and tried again with the next change."""
        where = source.root if source.is_file else source.path
        async for _ in awatch(where, watch_filter=None, recursive=not source.is_file):
            try:
                if await asyncio.to_thread(source.list) == self._last.get(source.name):
                    continue
                synced = await self._sync(source)
            except ConnectionLost:
                return
            except (JdistError, OSError) as e:
                self._tell(Notice(str(e)))
            else:
                self._tell(Notice(f"synced {synced}"))

    async def _end_watch(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])

    def _listen(self, message: Message) -> None:
        """A node that was not here when it was last looked has not got the code yet."""
        if not isinstance(message, ClusterFacts):
            return
        before, self._seen_nodes = self._seen_nodes, message.hostnames
        came = [n for n, name in enumerate(message.hostnames) if name and (n >= len(before) or not before[n])]
        if came and self._newcomers is None:
            self._newcomers = asyncio.get_running_loop().create_task(self._bring_to_newcomers())

    async def _bring_to_newcomers(self) -> None:
        try:
            for source in list(self._sources.values()):
                await self._sync(source)
        except ConnectionLost:
            return
        except (JdistError, OSError) as e:
            text = f"code could not be brought to a node that came: {e}"
            self._tell(Notice(text, remedies=(Remedy("sync", "bring it again"),)))
        finally:
            self._newcomers = None

    async def _settled(self) -> None:
        if self._newcomers is not None:
            await asyncio.wait([self._newcomers])

    async def detach(self) -> None:
        """Leave the cluster running and close this client."""
        tasks = [*self._watches.values(), *filter(None, [self._newcomers])]
        self._watches.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._unlisten is not None:
            with contextlib.suppress(ValueError):
                self._unlisten()
            self._unlisten = None
        await super().detach()


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """The one to be told of; the others are its siblings, cancelled or failing alike."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
