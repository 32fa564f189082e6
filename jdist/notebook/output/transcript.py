"""Transcript: the text and displays of one run's ranks, merged into one view.

No rank's line is lost, moved behind a later one of the same rank or given to another rank; within that, lines that are
equal on several ranks stand once.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from jdist.core.messages.output import Clear, Display, OutputItem, Tail
from jdist.core.messages.output import Text as TextMessage
from jdist.core.outcome import OutputEntry, OutputLine, RichOutput, SkippedLines
from jdist.core.ranks import ranks_by
from jdist.notebook.output.alignment import AlignedBlock, AlignedEntry, Alignment
from jdist.notebook.output.terminal_emulator import LineAssembler

Stream = Literal["stdout", "stderr"]


class BlockPart(Struct, frozen=True):
    """An item that is the same on ``ranks`` (ascending); ``item.rank`` is the first of them."""

    ranks: tuple[int, ...]
    item: OutputEntry


class Block(Struct, frozen=True):
    """One place in the merged view: one item of each of ``ranks`` (ascending).

    One part when the items are equal. Several when they are lines that differ only in their numbers, or displays that
    were updated to something else.
    """

    ranks: tuple[int, ...]
    parts: tuple[BlockPart, ...]

    def of(self, rank: int) -> OutputEntry | None:
        """This rank's item, or None."""
        return next((part.item for part in self.parts if rank in part.ranks), None)


class Transcript:
    """Collects the output of one run as it arrives. ``ranks`` are the run's ranks."""

    def __init__(self, ranks: Iterable[int]):
        self._ranks = tuple(sorted(set(ranks)))
        self._alignment = Alignment(self._ranks)
        self._open: dict[tuple[int, Stream], LineAssembler] = {}
        self._tails: dict[tuple[int, Stream], list[OutputEntry]] = {}
        self._shown: dict[tuple[int, str], list[AlignedBlock]] = {}
        self._to_clear: set[int] = set()

    def feed(self, item: OutputItem) -> None:
        """Record one item as the ranks sent it."""
        match item:
            case TextMessage():
                self.feed_text(item.ranks, item.stream, item.text)
            case Display() if item.is_update:
                self.feed_update(item.ranks, item.display_id, item.data, item.metadata)
            case Display():
                self.feed_rich(item.ranks, item.data, item.metadata, item.is_result, item.display_id or None)
            case Clear():
                self.feed_clear(item.ranks, item.wait)
            case Tail():
                self.feed_tail(item.rank, item.stream, item.lines, item.chars, item.text)

    def feed_text(self, ranks: Sequence[int], stream: Stream, text: str) -> None:
        """Record raw text of each of these ranks: pieces of lines, ``\\r``, ``\\b`` and ANSI sequences included."""
        done: dict[tuple[str, ...], list[int]] = {}
        for rank in self._ready(ranks):
            if (rank, stream) in self._tails:
                self._close_tail(rank, stream)
            lines = self._open.setdefault((rank, stream), LineAssembler()).feed(text)
            if lines:
                done.setdefault(tuple(lines), []).append(rank)
        for same, who in done.items():
            for line in same:
                self._alignment.add(who, _text_entry(stream, line))

    def feed_rich(
        self,
        ranks: Sequence[int],
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        is_result: bool = False,
        display_id: str | None = None,
    ) -> None:
        """Record a display, or the cell's last value. It ends the ranks' open lines, as in any notebook."""
        ready = self._ready(ranks)
        for rank in ready:
            for stream in ("stdout", "stderr"):
                self._close_line(rank, stream)
        if not ready:
            return
        nodes = self._alignment.add(ready, _entry(RichOutput(ready[0], dict(data), dict(metadata or {}), is_result)))
        if display_id is not None:
            for rank, node in zip(ready, nodes, strict=True):
                self._shown.setdefault((rank, display_id), []).append(node)

    def feed_update(
        self, ranks: Sequence[int], display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> bool:
        """Replace these ranks' displays of this id. False when none of them is in this transcript."""
        found = False
        for rank in sorted(set(ranks)):
            for node in self._shown.get((rank, display_id), ()):
                old = node.members[rank].item
                is_result = isinstance(old, RichOutput) and old.is_result
                item = RichOutput(rank, dict(data), dict(metadata or {}), is_result)
                self._alignment.replace(node, rank, _entry(item))
                found = True
        return found

    def feed_clear(self, ranks: Collection[int], wait: bool = False) -> None:
        """Clear these ranks' output: at once, or with ``wait`` when the rank's next output comes."""
        if wait:
            self._to_clear.update(ranks)
            return
        self._to_clear.difference_update(ranks)
        for rank in ranks:
            self._alignment.clear(rank)
        self._open = {key: held for key, held in self._open.items() if key[0] not in ranks}
        self._tails = {key: held for key, held in self._tails.items() if key[0] not in ranks}
        self._shown = {key: held for key, held in self._shown.items() if key[0] not in ranks}

    def feed_tail(self, rank: int, stream: Stream, lines_skipped: int, chars_skipped: int, tail_text: str) -> None:
        """Replace the rank's snapshot of this stream: past its cap a rank sends what it left out and its newest lines.

        A snapshot stands after all else that the rank has sent.
        """
        self._ready((rank,))
        self._close_line(rank, stream)
        assembler = LineAssembler()
        lines = assembler.feed(tail_text)
        lines += [assembler.current] if assembler.current else []
        skipped = [SkippedLines(rank, lines_skipped, chars_skipped)] if lines_skipped or chars_skipped else []
        self._tails[rank, stream] = [*skipped, *(OutputLine(rank, stream, line) for line in lines)]

    def close(self, ranks: Iterable[int] | None = None) -> None:
        """Make open lines and snapshots final: these ranks (default: all) will write no more."""
        chosen = None if ranks is None else set(ranks)
        for key in sorted({*self._open, *self._tails}):
            if chosen is None or key[0] in chosen:
                self._close_tail(*key)
                self._close_line(*key)

    def blocks(self) -> list[Block]:
        """The merged view, oldest first; what is not finished stands at the end."""
        live = Alignment(self._ranks)  # Snapshots and open lines, merged among themselves.
        for key in sorted(self._tails):
            for item in self._tails[key]:
                live.add((key[0],), _entry(item))
        for (rank, stream), assembler in sorted(self._open.items()):
            if line := assembler.current:
                live.add((rank,), _text_entry(stream, line))
        return [_block(node) for node in (*self._alignment, *live)]

    def items(self, rank: int) -> list[OutputEntry]:
        """The rank's finished items in its own order."""
        return [_with_rank(entry.item, rank) for entry in self._alignment.chain(rank)]

    def _ready(self, ranks: Sequence[int]) -> list[int]:
        """The ranks in ascending order. A pending clear of theirs is done now."""
        ready = sorted(set(ranks))
        waiting = self._to_clear.intersection(ready)
        if waiting:
            self.feed_clear(waiting)
        return ready

    def _close_line(self, rank: int, stream: Stream) -> None:
        assembler = self._open.get((rank, stream))
        line = assembler.take() if assembler is not None else ""
        if line:
            self._alignment.add((rank,), _text_entry(stream, line))

    def _close_tail(self, rank: int, stream: Stream) -> None:
        for item in self._tails.pop((rank, stream), ()):
            self._alignment.add((rank,), _entry(item))


def _entry(item: OutputEntry) -> AlignedEntry:
    if isinstance(item, OutputLine):
        return _text_entry(item.stream, item.text)
    if isinstance(item, SkippedLines):
        return AlignedEntry(item, ("skipped", item.lines, item.chars), reach=8)
    content = msgspec.json.encode([item.data, item.metadata], order="deterministic", enc_hook=repr)
    digest = hashlib.blake2b(content, digest_size=16).digest()
    return AlignedEntry(item, ("rich", item.is_result, digest), reach=10_000)


@lru_cache(maxsize=4096)
def _text_entry(stream: Stream, text: str) -> AlignedEntry:
    """A line's entry. Equals of a short line are sought nearby only: an ``ok`` may mean anything."""
    reach = max(8, len(text.strip()) ** 2)
    return AlignedEntry(OutputLine(-1, stream, text), (stream, text), reach)


def _with_rank(item: OutputEntry, rank: int) -> OutputEntry:
    return item if item.rank == rank else msgspec.structs.replace(item, rank=rank)


def _block(node: AlignedBlock) -> Block:
    """The node as it is now; made again only after it has changed."""
    if isinstance(node.cache, Block):
        return node.cache
    same = ranks_by((rank, entry.key) for rank, entry in sorted(node.members.items()))
    parts = tuple(BlockPart(tuple(who), _with_rank(node.members[who[0]].item, who[0])) for who in same.values())
    block = Block(tuple(sorted(node.members)), parts)
    node.cache = block
    return block
