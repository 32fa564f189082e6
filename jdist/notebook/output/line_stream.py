"""Lines: a run's output for a screen on which nothing can be replaced: each line, with its ranks, once it is whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jdist.core.messages.output import Display, OutputItem, Tail, Text
from jdist.core.ranks import RankSet
from jdist.notebook.output.terminal_emulator import LineAssembler


class LineStream:
    """Makes lines of output items; what several ranks say in one item is one line."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], LineAssembler] = {}
        self._tails: dict[int, Tail] = {}

    def feed(self, item: OutputItem) -> Iterator[str]:
        """The lines that this item ends."""
        if isinstance(item, Text):
            whole: dict[tuple[str, ...], list[int]] = {}
            for rank in item.ranks:
                assembler = self._open.setdefault((rank, item.stream), LineAssembler())
                whole.setdefault(tuple(assembler.feed(item.text)), []).append(rank)
            for lines, ranks in whole.items():
                yield from _prefixed(ranks, lines)
        elif isinstance(item, Display) and not item.is_update:
            yield from _prefixed(item.ranks, str(item.data.get("text/plain", "")).splitlines())
        elif isinstance(item, Tail):
            self._tails[item.rank] = item

    def close(self) -> Iterator[str]:
        """What is left: lines without a newline, and the newest ones of streams that grew past their limit."""
        for (rank, _), assembler in self._open.items():
            if assembler.current:
                yield from _prefixed((rank,), (assembler.take(),))
        for rank, tail in sorted(self._tails.items()):
            yield f"[{rank}] … {tail.lines:,} lines left out; jdist logs {rank} shows them"
            yield from _prefixed((rank,), tail.text.splitlines())


def _prefixed(ranks: Iterable[int], lines: Iterable[str]) -> Iterator[str]:
    prefix = RankSet(ranks)
    return (f"[{prefix}] {line}" for line in lines)
