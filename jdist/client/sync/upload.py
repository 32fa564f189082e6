"""Upload: nodes report which contents of a tree they lack, get only those, and put them in place all at once.

Small contents travel in messages, many in one; large ones in parts through the data port, several at a time, like a
pushed value. Others on the network can read them there, as they can read tensors, but not change them: their digests
come over the encrypted port. Nodes that share a folder get everything once.
"""

import asyncio
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from jdist.client.link import Link, new_request
from jdist.client.sync.tree import SyncSource
from jdist.client.values.carrier import OnProgress, hold
from jdist.core.errors import UsageError
from jdist.core.messages.base import ProbeWire, QueryFailed
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
from jdist.core.messages.protocol import NodeOp, NodeReplyBody, RankQuery
from jdist.core.messages.values import Hold, Release
from jdist.core.quantities import format_bytes, format_count
from jdist.wire.transport.dialing import put_segment
from jdist.wire.values.segments import Segment

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

    def __init__(
        self, link: Link, probe: ProbeWire, source: SyncSource, names: Sequence[str], on_progress: OnProgress | None
    ):
        self._link = link
        self._probe = probe
        self._source = source
        self._names = names
        self._on_progress = on_progress or (lambda *_: None)
        self._done = 0
        self._total = 0

    async def send(self, tree: SourceTree, nodes: Sequence[int]) -> Synced:
        """Bring ``nodes`` up to date. Raises UsageError naming node and file; nothing has been changed there."""
        found = {n: a for n, a in (await self._query(nodes, CompareTree(tree))).items() if isinstance(a, TreeCompared)}
        sharing: dict[str, list[int]] = {}
        for node in sorted(found):
            sharing.setdefault(found[node].place, []).append(node)
        leaders = [group[0] for group in sharing.values()]
        lacking: dict[bytes, list[int]] = {}
        for node in leaders:
            for digest in found[node].lacks:
                lacking.setdefault(digest, []).append(node)
        sent = {e.digest: e for e in tree.entries if e.digest in lacking}
        self._total = sum(e.size for e in sent.values())
        await self._send_all(sent.values(), lacking)
        changed: set[str] = set()
        deleted: set[str] = set()
        for node, answer in (await self._query(leaders, ApplyTree(tree))).items():
            if isinstance(answer, TreeApplied):
                changed |= set(answer.changed)
                deleted |= set(answer.deleted)
                followers = next(g for g in sharing.values() if g[0] == node)[1:]
                await self._query(followers, AdoptTree(tree.name, tree.is_package, answer.changed))
        first = found[leaders[0]]
        folder = first.path if tree.is_package else os.path.join(first.path, tree.name)
        counts = (len(tree.entries), len(sent), self._total)
        return Synced(tree.name, folder, *counts, tuple(sorted(changed)), tuple(sorted(deleted)), tuple(nodes))

    async def _send_all(self, entries: Iterable[TreeEntry], lacking: dict[bytes, list[int]]) -> None:
        small: dict[tuple[int, ...], list[TreeEntry]] = {}
        large: list[TreeEntry] = []
        for entry in entries:
            if entry.size <= _SMALL:
                small.setdefault(tuple(lacking[entry.digest]), []).append(entry)
            else:
                large.append(entry)
        gate = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for nodes, wanted in small.items():
                group.create_task(self._send_small(wanted, nodes, gate))
            for entry in large:
                for offset in range(0, entry.size, _PART):
                    group.create_task(self._send_part(entry, offset, lacking[entry.digest], gate))

    async def _send_small(self, entries: Iterable[TreeEntry], nodes: Sequence[int], gate: asyncio.Semaphore) -> None:
        pieces: list[Piece] = []
        for entry in entries:
            pieces.append(Piece(entry.digest, 0, await asyncio.to_thread(_read, self._source.where(entry), 0, _SMALL)))
            if sum(len(p.data) for p in pieces) >= _MESSAGE:
                await self._store(pieces, nodes, gate)
                pieces = []
        if pieces:
            await self._store(pieces, nodes, gate)

    async def _store(self, pieces: list[Piece], nodes: Sequence[int], gate: asyncio.Semaphore) -> None:
        async with gate:
            await self._query(nodes, StorePieces(self._source.name, tuple(pieces)))
        self._note(sum(len(p.data) for p in pieces))

    async def _send_part(self, entry: TreeEntry, offset: int, nodes: Sequence[int], gate: asyncio.Semaphore) -> None:
        async with gate:
            data = await asyncio.to_thread(_read, self._source.where(entry), offset, min(_PART, entry.size - offset))
            if not data:
                return  # the file has become shorter; the digest will not match, which is reported
            segment = Segment.create(self._link.connection.cluster, len(data))
            transfer = uuid.uuid4().hex
            try:
                await asyncio.to_thread(segment.fill, [memoryview(data)])
                part = StorePieces(
                    self._source.name,
                    digest=entry.digest,
                    offset=offset,
                    nbytes=len(data),
                    transfer=transfer,
                    path=segment.path,
                    probe=self._probe,
                )
                await self._pass(part, segment, nodes)
            finally:
                segment.close()
                segment.unlink()
                if not self._link.lost:
                    self._link.send(RankQuery(new_request(), (), Release(transfer)))
        self._note(len(data))

    async def _pass(self, part: StorePieces, segment: Segment, nodes: Sequence[int]) -> None:
        """Hand a part to nodes of this host in the segment itself, to others through the controller."""
        if await hold(self._link, Hold(part.transfer, part.nbytes, self._probe, segment.path)):
            await self._query(nodes, part)
            return
        c = self._link.connection
        async with asyncio.TaskGroup() as group:
            group.create_task(self._query(nodes, part))
            group.create_task(asyncio.to_thread(put_segment, (c.host, c.data_port), part.transfer, segment))

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
