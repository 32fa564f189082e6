"""Code sync: local files are copied to every node, also to one that joins later, and kept up to date while watched.

Nodes get only the contents that they lack, once if they share a folder, and put them in place all at once. Small ones
travel in messages, large ones in parts through the data port. There others on the network can read them, like pushed
values, but cannot change them, because their digests come over the encrypted port.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from watchfiles import awatch

from jdist.client.attachment import Attachment
from jdist.client.history import Annotation
from jdist.client.sync.tree import SyncSource
from jdist.client.values.carrier import Carrier, OnProgress
from jdist.core.errors import ConnectionLost, JdistError, UsageError
from jdist.core.messages.base import Message, QueryFailed
from jdist.core.messages.code import (
    AdoptTree,
    ApplyTree,
    CompareTree,
    Piece,
    SourceTree,
    StorePieces,
    TreeApplied,
    TreeCompared,
    TreeEntry,
)
from jdist.core.messages.protocol import NodeOp, NodeReplyBody
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.quantities import format_bytes, format_count
from jdist.core.ranks import ranks_by
from jdist.core.remedy import Remedy

_SMALL = 1 << 20  # Bytes of a content that travels in a message.
_MESSAGE = 4 << 20  # Bytes of contents in one message.
_PART = 16 << 20  # Bytes of a large content that travel at once.
_AT_ONCE = 4
_QUIET = 120.0  # Seconds without an answer from a node that compares its files, or fetches a part.


class Synced(Struct, frozen=True):
    """The result of a sync. Paths are relative to the tree."""

    name: str
    folder: str  # The copy on the first node; on the others it has the same name in their temporary folder.
    files: int  # Number of files in the synced tree.
    sent: int  # Number of contents that some node lacked.
    nbytes: int  # Bytes of those contents, each counted once for all nodes.
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    nodes: tuple[int, ...]

    def __str__(self) -> str:
        nodes = format_count(len(self.nodes), "node")
        if not self.changed and not self.deleted:
            return f"{self.name}: nothing has changed; {self.files} files on {nodes}"
        parts = [f"{format_count(len(self.changed), 'file')} of {self.files} written, {format_bytes(self.nbytes)} sent"]
        parts += [f"{format_count(len(self.deleted), 'file')} deleted"] * bool(self.deleted)
        return f"{self.name}: {', '.join(parts)}, on {nodes}; imports find it in {self.folder}"


class SyncedCode:
    """The part of a cluster that keeps local code in sync with its nodes."""

    def __init__(self, attachment: Attachment, carrier: Carrier) -> None:
        self._attachment = attachment
        self._carrier = carrier
        self._sources: dict[str, SyncSource] = {}
        self.watches: dict[str, asyncio.Task[None]] = {}  # Tasks that sync changed files, by the source's name.
        self._syncing = asyncio.Lock()
        self._seen_nodes: tuple[str, ...] = ()
        self._for_new_nodes: asyncio.Task[None] | None = None
        attachment.watch(self._on_message)

    async def sync(
        self, path: str, *, exclude: Sequence[str] = (), watch: bool = False, on_progress: OnProgress | None = None
    ) -> Synced:
        """Copy a local file or folder to every node, only what has changed, and have every rank import from it.

        The copy is in a folder of the cluster's own that ends with it; what was deleted here is deleted there. A folder
        with an ``__init__.py`` is imported by its name, any other folder's modules by theirs. Modules that are loaded
        already are read again before a rank's next cell, and names imported from them are updated. Left out are .git,
        __pycache__, what .gitignore files name, and ``exclude``, in the same syntax.
        With ``watch``, changes are synced as they happen until this client detaches, or syncs the path without it.
        Nodes and ranks that join later have the code, too. Raises UsageError naming node and file; nothing has been
        changed then.
        """
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
                synced = await Upload(self._attachment, self._carrier, source, on_progress).send(tree)
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


class Upload:
    """Sends one tree to nodes."""

    def __init__(
        self, attachment: Attachment, carrier: Carrier, source: SyncSource, on_progress: OnProgress | None
    ) -> None:
        self._link = attachment.link
        self._carrier = carrier
        self._names = attachment.facts.hostnames
        self._source = source
        self._on_progress = on_progress or (lambda *_: None)
        self._done = 0
        self._total = 0

    async def send(self, tree: SourceTree) -> Synced:
        """Bring all nodes up to date. Raises UsageError naming node and file; nothing has been changed there."""
        nodes = [n for n, name in enumerate(self._names) if name]
        if not nodes:
            raise UsageError("no node is attached to sync to")
        found = {n: a for n, a in (await self._query(nodes, CompareTree(tree))).items() if isinstance(a, TreeCompared)}
        sharing = ranks_by((node, found[node].place) for node in sorted(found)).values()
        followers = {leader: others for leader, *others in sharing}
        lacking = ranks_by((node, digest) for node in followers for digest in found[node].lacks)
        sent = {e.digest: e for e in tree.entries if e.digest in lacking}
        self._total = sum(e.size for e in sent.values())
        await self._send_all(sent.values(), lacking)
        changed: set[str] = set()
        deleted: set[str] = set()
        for node, answer in (await self._query(tuple(followers), ApplyTree(tree))).items():
            if isinstance(answer, TreeApplied):
                changed |= set(answer.changed)
                deleted |= set(answer.deleted)
                await self._query(followers[node], AdoptTree(tree.name, tree.is_package, answer.changed))
        first = found[min(followers)]
        folder = first.path if tree.is_package else os.path.join(first.path, tree.name)
        counts = (len(tree.entries), len(sent), self._total)
        return Synced(tree.name, folder, *counts, tuple(sorted(changed)), tuple(sorted(deleted)), tuple(nodes))

    async def _send_all(self, entries: Iterable[TreeEntry], lacking: Mapping[bytes, Sequence[int]]) -> None:
        small: dict[tuple[int, ...], list[TreeEntry]] = {}
        gate = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for entry in entries:
                nodes = tuple(lacking[entry.digest])
                if entry.size <= _SMALL:
                    small.setdefault(nodes, []).append(entry)
                    continue
                for offset in range(0, entry.size, _PART):
                    group.create_task(self._send_part(entry, offset, nodes, gate))
            for nodes, wanted in small.items():
                group.create_task(self._send_small(wanted, nodes, gate))

    async def _send_small(self, entries: Sequence[TreeEntry], nodes: Sequence[int], gate: asyncio.Semaphore) -> None:
        pieces: list[Piece] = []
        for i, entry in enumerate(entries, 1):
            data = await asyncio.to_thread(_read, self._source.root / entry.path, 0, _SMALL)
            pieces.append(Piece(entry.digest, 0, data))
            nbytes = sum(len(p.data) for p in pieces)
            if nbytes >= _MESSAGE or i == len(entries):
                async with gate:
                    await self._query(nodes, StorePieces(self._source.name, tuple(pieces)))
                self._note(nbytes)
                pieces = []

    async def _send_part(self, entry: TreeEntry, offset: int, nodes: Sequence[int], gate: asyncio.Semaphore) -> None:
        def fetch(path: str, nbytes: int, transfer: str) -> Coroutine[Any, Any, Any]:
            place = (entry.digest, offset, nbytes, transfer, path, self._carrier.probe)
            return self._query(nodes, StorePieces(self._source.name, (), *place))

        async with gate:
            count = min(_PART, entry.size - offset)
            data = await asyncio.to_thread(_read, self._source.root / entry.path, offset, count)
            if not data:
                return  # the file has become shorter; the digest will not match, which is reported
            await self._carrier.share([memoryview(data)], fetch)
        self._note(len(data))

    def _note(self, nbytes: int) -> None:
        self._done += nbytes
        self._on_progress(self._source.name, self._done, self._total)

    async def _query(self, nodes: Sequence[int], op: NodeOp) -> dict[int, NodeReplyBody]:
        """The nodes' answers. Raises UsageError when a node failed."""
        answers = await self._link.query_nodes(nodes, op, _QUIET) if nodes else {}
        failed = {n: a.reason for n, a in sorted(answers.items()) if isinstance(a, QueryFailed)}
        if failed:
            each = "; ".join(f"node {n} ({self._names[n]}): {reason}" for n, reason in failed.items())
            raise UsageError(f"sync {self._source.path}: {each}")
        return answers


def _read(path: Path, offset: int, count: int) -> bytes:
    """A part of a file. Raises UsageError naming the file."""
    try:
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read(count)
    except OSError as e:
        raise UsageError(f"sync: {path} cannot be read any more: {e.strerror}; sync again") from e
