"""Code sync, a node's part: it reports what it lacks, stores what arrives, and has its ranks import it."""

import asyncio
from collections.abc import Callable

from jdist.agent.code.folder import CodeFolder
from jdist.agent.node.context import NodeContext
from jdist.core.messages.base import Ack, Message
from jdist.core.messages.code import (
    AdoptTree,
    ApplyTree,
    CodeSynced,
    CompareTree,
    StorePieces,
    TreeApplied,
    TreeCompared,
)
from jdist.core.messages.protocol import NodeReplyBody
from jdist.wire.transport.dialing import get_segment
from jdist.wire.values.segments import Segment, shares_memory

CodeOp = CompareTree | StorePieces | ApplyTree | AdoptTree


class CodeReceiver:
    """Applies synced trees; ``broadcast`` sends to every worker of this node."""

    def __init__(self, node: NodeContext, broadcast: Callable[[Message], object]):
        self._node = node
        self._broadcast = broadcast
        self._folder = CodeFolder(node.endpoint.cluster)
        self._lock = asyncio.Lock()

    @property
    def folders(self) -> tuple[str, ...]:
        """For the import path of workers that start from now on, the newest first."""
        return self._folder.folders if self._folder.is_used else ()

    async def answer(self, op: CodeOp, progress: Callable[[int], None]) -> NodeReplyBody:
        """Raises OSError, JdistError."""
        match op:
            case StorePieces():
                await asyncio.to_thread(self._store, op, progress)
                return Ack()
            case CompareTree(tree):
                async with self._lock:
                    missing = await asyncio.to_thread(self._folder.missing, tree)
                return TreeCompared(self._folder.place, str(self._folder.path), missing)
            case ApplyTree(tree):
                async with self._lock:
                    changed, deleted = await asyncio.to_thread(self._folder.apply, tree)
                self._adopt(tree.name, tree.is_package, changed)
                return TreeApplied(changed, deleted)
            case AdoptTree(name, is_package, changed):
                self._adopt(name, is_package, changed)
                return Ack()

    def _adopt(self, name: str, is_package: bool, changed: tuple[str, ...]) -> None:
        self._folder.adopt(name, is_package)
        root = self._folder.path / name
        self._broadcast(CodeSynced(self._folder.folders, tuple(str(root / path) for path in changed)))

    def _store(self, op: StorePieces, progress: Callable[[int], None]) -> None:
        for piece in op.pieces:
            self._folder.store(op.tree, piece.digest, piece.offset, piece.data)
        if not op.transfer:
            return
        is_here = shares_memory(op.probe)
        if is_here and op.path:
            segment = Segment.open(op.path, op.nbytes)
        else:
            node = self._node
            segment = get_segment(node.data_port, op.transfer, node.endpoint.cluster, op.nbytes, progress)
        try:
            self._folder.store(op.tree, op.digest, op.offset, segment.view)
        finally:
            segment.close()
            if not (is_here and op.path):
                segment.unlink()

    def close(self) -> None:
        self._folder.close()
