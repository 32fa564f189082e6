"""Transcript: the text and displays of one run's ranks, merged into one view: equal lines of several ranks stand once,
but no rank's line is lost, moved behind a later one of the same rank or given to another rank.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Literal

import msgspec
from msgspec import Struct

from jdist.core.messages.runs import Clear, CommSent, Display, OutputItem, Tail, Text
from jdist.core.outcome import WIDGET_VIEW, OutputEntry, OutputLine, RichOutput, SkippedLines, unconnected
from jdist.core.ranks import ranks_by
from jdist.notebook.output.alignment import AlignedBlock, AlignedEntry, Alignment
from jdist.notebook.output.terminal_emulator import LineAssembler
from jdist.notebook.text import folding
from jdist.notebook.text.markup import without_widgets

Stream = Literal["stdout", "stderr"]


class BlockPart(Struct, frozen=True):
    """An item that is the same on ``ranks`` (ascending); ``item.rank`` is the first of them."""

    ranks: tuple[int, ...]
    item: OutputEntry


class Block(Struct, frozen=True):
    """One place in the merged view: one item of each of ``ranks`` (ascending).

    It has several parts where lines differ only in their numbers, or displays were updated to something else.
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
        self._captured: dict[tuple[int, str], list[tuple[AlignedEntry, AlignedBlock]]] = {}  # By rank and area.
        self._areas_to_clear: set[tuple[int, str]] = set()

    def feed(self, item: OutputItem) -> None:
        """Record one item as the ranks sent it."""
        if isinstance(item, CommSent):
            return
        ranks = (item.rank,) if isinstance(item, Tail) else tuple(sorted(set(item.ranks)))
        if isinstance(item, Display):
            item = msgspec.structs.replace(item, data=unconnected(item.data))
            if not item.data:
                return
        is_new = isinstance(item, Text | Tail) or (isinstance(item, Display) and not item.is_update)
        if is_new and (waiting := self._to_clear.intersection(ranks)):
            self._clear(waiting)
        if is_new and not isinstance(item, Tail) and item.area:
            self._clear_area(self._areas_to_clear.intersection((rank, item.area) for rank in ranks))
        match item:
            case Clear(area=area) if area:
                self._areas_to_clear.update((rank, area) for rank in ranks)
                if not item.wait:
                    self._clear_area({(rank, area) for rank in ranks})
            case Text():
                self._add_text(ranks, item)
            case Display(is_update=True):
                self._update(ranks, item)
            case Display():
                self._add_display(ranks, item)
            case Clear(wait=True):
                self._to_clear.update(ranks)
            case Clear():
                self._clear(set(ranks))
            case Tail():
                self._replace_tail(item)

    def _add_text(self, ranks: Sequence[int], item: Text) -> None:
        """Raw text of each of these ranks: pieces of lines, ``\\r``, ``\\b`` and ANSI sequences included."""
        done: dict[tuple[str, ...], list[int]] = {}
        for rank in ranks:
            if (rank, item.stream) in self._tails:
                self._close_tail(rank, item.stream)
            if (assembler := self._open.get((rank, item.stream))) is None:
                assembler = self._open[rank, item.stream] = LineAssembler(partial(self._take_back, rank, item.stream))
            if lines := assembler.feed(item.text):
                done.setdefault(tuple(lines), []).append(rank)
        for same, who in done.items():
            for line in same:
                self._add(who, _text_entry(item.stream, line), item.area)

    def _add(self, ranks: Sequence[int], entry: AlignedEntry, area: str) -> list[AlignedBlock]:
        nodes = self._alignment.add(ranks, entry)
        if area:
            for rank, node in zip(ranks, nodes, strict=True):
                self._captured.setdefault((rank, area), []).append((entry, node))
        return nodes

    def _clear_area(self, areas: set[tuple[int, str]]) -> None:
        """Forget what output widgets of ranks have captured."""
        self._areas_to_clear -= areas
        for rank, area in areas:
            for entry, node in self._captured.pop((rank, area), ()):
                self._alignment.remove(rank, entry, node)

    def _add_display(self, ranks: Sequence[int], item: Display) -> None:
        """A display, or the cell's last value. It ends the ranks' open lines, as in any notebook."""
        for rank in ranks:
            self._close_line(rank, "stdout")
            self._close_line(rank, "stderr")
        entry = _entry(RichOutput(ranks[0], item.data, item.metadata, item.is_result))
        for rank, node in zip(ranks, self._add(ranks, entry, item.area), strict=True):
            if item.display_id:
                self._shown.setdefault((rank, item.display_id), []).append(node)

    def _update(self, ranks: Sequence[int], item: Display) -> None:
        """Replace these ranks' displays of this id; those that are results stay results."""
        for rank in ranks:
            for node in self._shown.get((rank, item.display_id), ()):
                old = node.members.get(rank)
                if old is None:  # an output widget that held it was cleared
                    continue
                is_result = isinstance(old.item, RichOutput) and old.item.is_result
                self._alignment.replace(node, rank, _entry(RichOutput(rank, item.data, item.metadata, is_result)))

    def _replace_tail(self, item: Tail) -> None:
        """Replace a rank's snapshot of a stream that is past its cap; it stands after all else that the rank sent."""
        for line in self._open.pop((item.rank, item.stream), LineAssembler()).take():
            if folding.find(line) is None:  # the newest state of a bar is in the snapshot
                self._alignment.add((item.rank,), _text_entry(item.stream, line))
        assembler = LineAssembler()
        lines = assembler.feed(item.text)
        lines += assembler.current
        skipped = [SkippedLines(item.rank, item.lines, item.chars)] if item.lines or item.chars else []
        self._tails[item.rank, item.stream] = [*skipped, *(OutputLine(item.rank, item.stream, line) for line in lines)]

    def _clear(self, ranks: set[int]) -> None:
        self._to_clear -= ranks
        for rank in ranks:
            self._alignment.clear(rank)
        self._open = {key: held for key, held in self._open.items() if key[0] not in ranks}
        self._tails = {key: held for key, held in self._tails.items() if key[0] not in ranks}
        self._shown = {key: held for key, held in self._shown.items() if key[0] not in ranks}

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
            for line in assembler.current:
                live.add((rank,), _text_entry(stream, line))
        return _with_one_note([_block(node) for node in (*self._alignment, *live)])

    def items(self, rank: int) -> list[OutputEntry]:
        """The rank's finished items in its own order."""
        return [_with_rank(entry.item, rank) for entry in self._alignment.chain(rank)]

    def _close_line(self, rank: int, stream: Stream) -> None:
        if (assembler := self._open.get((rank, stream))) is not None:
            for line in assembler.take():
                self._alignment.add((rank,), _text_entry(stream, line))

    def _take_back(self, rank: int, stream: Stream) -> str | None:
        """Remove and return the rank's last finished line of this stream, since it can change again."""
        entry = self._alignment.take_back(rank, lambda e: isinstance(e.key, tuple) and e.key[0] == stream)
        return entry.item.text if entry is not None and isinstance(entry.item, OutputLine) else None

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
    """A line's entry. Equals of a short line are sought nearby only: an ``ok`` may mean anything. A bar is no error,
    though most are written to stderr.
    """
    reach = max(8, len(text.strip()) ** 2)
    shown_as = "stdout" if stream == "stderr" and folding.find(text) is not None else stream
    return AlignedEntry(OutputLine(-1, shown_as, text), (stream, text), reach)


def _with_rank(item: OutputEntry, rank: int) -> OutputEntry:
    return item if item.rank == rank else msgspec.structs.replace(item, rank=rank)


def _block(node: AlignedBlock) -> Block:
    """The node as it is now; made again only after it has changed."""
    if isinstance(node.cache, Block):
        return node.cache
    same = ranks_by((rank, entry.key) for rank, entry in sorted(node.members.items()))
    parts = tuple(BlockPart(tuple(who), _with_rank(node.members[who[0]].item, who[0])) for who in same.values())
    node.cache = block = Block(tuple(sorted(node.members)), parts)
    return block


def _with_one_note(blocks: list[Block]) -> list[Block]:
    """The blocks with one note in the place of all widgets, where the first of them stood."""
    widgets = [part for block in blocks for part in block.parts if _is_widget(part)]
    if not widgets:
        return blocks
    ranks = tuple(sorted({rank for part in widgets for rank in part.ranks}))
    names = [part.item.data["text/plain"] for part in widgets if isinstance(part.item, RichOutput)]
    note = Block(ranks, (BlockPart(ranks, RichOutput(ranks[0], {"text/plain": without_widgets(names)})),))
    return [*_replaced(blocks, note)]


def _replaced(blocks: Iterable[Block], note: Block) -> Iterator[Block]:
    has_noted = False
    for block in blocks:
        others = tuple(part for part in block.parts if not _is_widget(part))
        if len(others) == len(block.parts):
            yield block
            continue
        if not has_noted:
            yield note
            has_noted = True
        if others:
            yield Block(tuple(sorted(rank for part in others for rank in part.ranks)), others)


def _is_widget(part: BlockPart) -> bool:
    return isinstance(part.item, RichOutput) and WIDGET_VIEW in part.item.data
