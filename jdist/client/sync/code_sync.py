"""Code sync: local files are copied to every node, also to one that joins later, and kept up to date while watched."""

import asyncio
from collections.abc import Sequence

from watchfiles import awatch

from jdist.client.attachment import Attachment
from jdist.client.history import Annotation
from jdist.client.sync.tree import SyncSource
from jdist.client.sync.upload import Synced, Upload
from jdist.client.values.carrier import OnProgress
from jdist.core.errors import ConnectionLost, JdistError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.remedy import Remedy


class SyncedCode:
    """The code that one client has synced to a cluster."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._sources: dict[str, SyncSource] = {}
        # Tasks that sync a source when its files change, by the source's name.
        self.watches: dict[str, asyncio.Task[None]] = {}
        self._syncing = asyncio.Lock()
        self._seen_nodes: tuple[str, ...] = ()
        self._for_new_nodes: asyncio.Task[None] | None = None
        attachment.watch(self._on_message)

    async def sync(
        self, path: str, exclude: Sequence[str], *, watch: bool, on_progress: OnProgress | None = None
    ) -> Synced:
        source = SyncSource(path, exclude)
        known = self._sources.get(source.name)
        if known is not None and known.path != source.path:
            raise UsageError(f"sync {path}: {known.path} is synced under the name {source.name} already; rename one")
        if known is not None and known.exclude == source.exclude:
            source = known  # it knows what has not changed
        await self._end_watch(source.name)
        if watch:
            self.watches[source.name] = asyncio.create_task(self._keep_in_sync(source))
            await asyncio.sleep(0)  # from here on no change is missed
        try:
            synced = await self._sync(source, on_progress)
        except BaseException:
            await self._end_watch(source.name)
            raise
        self._sources[source.name] = source
        self._attachment.history.add(Annotation(f"{path} synced; a script imports from PYTHONPATH and its own folder"))
        return synced

    async def _sync(self, source: SyncSource, on_progress: OnProgress | None = None) -> Synced:
        async with self._syncing:
            tree = await asyncio.to_thread(source.list)
            try:
                synced = await Upload(self._attachment, source, on_progress).send(tree)
            except BaseExceptionGroup as group:
                first: BaseException = group
                while isinstance(first, BaseExceptionGroup):
                    first = first.exceptions[0]  # the others were cancelled, or failed alike
                raise first from group
            source.synced = tree
            return synced

    async def _keep_in_sync(self, source: SyncSource) -> None:
        """Sync after every change. A file that cannot be synced is reported, and tried again at the next change."""
        where = source.root if source.is_file else source.path
        async for _ in awatch(where, watch_filter=None, recursive=not source.is_file):
            try:
                if await asyncio.to_thread(source.list) == source.synced:
                    continue
                synced = await self._sync(source)
            except ConnectionLost:
                return
            except (JdistError, OSError) as e:
                self._attachment.notify(Notice(str(e)))
            else:
                self._attachment.notify(Notice(f"synced {synced}"))

    async def _end_watch(self, name: str) -> None:
        if watch := self.watches.pop(name, None):
            watch.cancel()
            await asyncio.wait([watch])

    def _on_message(self, message: Message) -> None:
        """Sync to nodes that were missing in the facts before."""
        if not isinstance(message, ClusterFacts):
            return
        before, self._seen_nodes = self._seen_nodes, message.hostnames
        joined = [n for n, name in enumerate(message.hostnames) if name and (n >= len(before) or not before[n])]
        if joined and self._sources and self._for_new_nodes is None:
            self._for_new_nodes = asyncio.get_running_loop().create_task(self._sync_new_nodes())

    async def _sync_new_nodes(self) -> None:
        try:
            for source in list(self._sources.values()):
                await self._sync(source)
        except ConnectionLost:
            return
        except (JdistError, OSError) as e:
            text = f"code could not be synced to a new node: {e}"
            self._attachment.notify(Notice(text, remedies=(Remedy("sync", "sync it again"),)))
        finally:
            self._for_new_nodes = None

    async def settled(self) -> None:
        """Wait until nodes that have joined have the code of the others."""
        if self._for_new_nodes is not None:
            await asyncio.wait([self._for_new_nodes])

    async def close(self) -> None:
        """End every watch; a node that joins from now on gets no code."""
        self._sources.clear()
        for name in list(self.watches):
            await self._end_watch(name)
        if self._for_new_nodes is not None:
            self._for_new_nodes.cancel()
            await asyncio.wait([self._for_new_nodes])
