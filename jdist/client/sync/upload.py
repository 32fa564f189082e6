"""Upload: nodes report which contents of a tree they lack, get only those, and put them in place all at once.

Small contents travel in messages, many in one; large ones in parts through the data port, several at a time, like a
pushed value. Others on the network can read them there, as they can read tensors, but not change them: their digests
come over the encrypted port. Nodes that share a folder get everything once.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from jdist.client.attachment import Attachment
from jdist.client.sync.tree import SyncSource
from jdist.client.values.carrier import OnProgress
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
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
from jdist.core.quantities import format_bytes, format_count
from jdist.core.ranks import ranks_by

_SMALL = 1 << 20  # Bytes of a content that travels in a message.
_MESSAGE = 4 << 20  # Bytes of contents in one message.
_PART = 16 << 20  # Bytes of a large content that travel at once.
_AT_ONCE = 4
_QUIET = 120.0  # Seconds without an answer from a node that compares its files, or fetches a part.


class Synced(Struct, frozen=True):
    """The result of a sync. Paths are relative to the tree."""

    name: str
    # The copy's folder on the first node; the others have it under the same name in their temporary folder.
    folder: str
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


class Upload:
    """Sends one tree to nodes."""

    def __init__(self, attachment: Attachment, source: SyncSource, on_progress: OnProgress | None):
        self._link = attachment.link
        self._carrier = attachment.carrier
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
            pieces.append(
                Piece(entry.digest, 0, await asyncio.to_thread(_read, self._source.root / entry.path, 0, _SMALL))
            )
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
            data = await asyncio.to_thread(
                _read, self._source.root / entry.path, offset, min(_PART, entry.size - offset)
            )
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
