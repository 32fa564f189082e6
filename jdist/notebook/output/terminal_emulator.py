"""Lines made of the raw text of streams, as a terminal would show them: ``\\r`` and ``\\b`` go back, ``ESC[K`` erases,
colours stay with their characters. The cursor does not leave the line: a finished line never changes.
"""

import re
from collections.abc import Iterable, Iterator

from jdist.core.messages.runs import Display, OutputItem, Tail, Text
from jdist.core.ranks import RankSet
from jdist.notebook.text.ansi import PLAIN, SEQUENCE, UNFINISHED, Style

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST_SEQUENCE = 4096  # An escape sequence that has not ended after so many characters is none.
_WIDEST = 100_000  # ESC[nC and ESC[nG move no further right than this.


class LineAssembler:
    """The unfinished line of one stream. Lines are returned once a newline has ended them."""

    __slots__ = ("_cells", "_cursor", "_pending", "_style", "_styles")

    def __init__(self) -> None:
        self._cells: list[str] = []
        self._styles: list[Style] | None = None  # None while the whole line has the default style
        self._cursor = 0
        self._style = PLAIN
        self._pending = ""

    def feed(self, text: str) -> list[str]:
        """Takes a piece of raw text; returns the lines that it ended, without newline."""
        if self._pending:
            text, self._pending = self._pending + text, ""
        cut = UNFINISHED.search(text)
        if cut and len(text) - cut.start() < _LONGEST_SEQUENCE:
            text, self._pending = text[: cut.start()], text[cut.start() :]
        parts = text.split("\n")
        done = []
        for part in parts[:-1]:
            if not self._cells and self._style == PLAIN and not _CONTROL.search(part):
                done.append(part)
            else:
                self._write(part)
                done.append(self.take())
        self._write(parts[-1])
        return done

    @property
    def current(self) -> str:
        """The unfinished line as it looks now; colours as SGR sequences, reset at its end."""
        if self._styles is None:
            return "".join(self._cells)
        out, last = [], PLAIN
        for cell, style in zip(self._cells, self._styles, strict=True):
            if style != last:
                out.append(("\x1b[0m" if last != PLAIN else "") + style.sgr())
                last = style
            out.append(cell)
        return "".join(out) + ("\x1b[0m" if last != PLAIN else "")

    def take(self) -> str:
        """Ends the unfinished line and returns it; the colour goes on in the next one, as in a terminal."""
        line = self.current
        self._cells, self._styles, self._cursor = [], None, 0
        return line

    def _write(self, text: str) -> None:
        at = 0
        for match in _CONTROL.finditer(text):
            if match.start() < at:
                continue  # inside a sequence that has been read
            self._put(text[at : match.start()])
            at = match.end()
            control = match[0]
            if control == "\r":
                self._cursor = 0
            elif control == "\b":
                self._cursor = max(0, self._cursor - 1)
            elif control == "\x1b" and (sequence := SEQUENCE.match(text, match.start())):
                at = sequence.end()
                self._obey(sequence["final"] or "", sequence["args"] or "")
        self._put(text[at:])

    def _obey(self, final: str, args: str) -> None:
        count = int(args) if args.isdecimal() and len(args) < 7 else 0
        if final == "m":
            self._style = self._style.after(args)
        elif final == "K" and count == 1:  # the line up to the cursor
            upto = min(self._cursor + 1, len(self._cells))
            self._cells[:upto] = " " * upto
            if self._styles is not None:
                self._styles[:upto] = [PLAIN] * upto
        elif final == "K" and count in (0, 2):  # the line after the cursor, the whole line
            del self._cells[self._cursor if count == 0 else 0 :]
            if self._styles is not None:
                del self._styles[len(self._cells) :]
        elif final == "C":
            self._cursor = min(self._cursor + max(1, count), _WIDEST)
        elif final == "D":
            self._cursor = max(0, self._cursor - max(1, count))
        elif final == "G":
            self._cursor = min(max(1, count) - 1, _WIDEST)

    def _put(self, text: str) -> None:
        if not text:
            return
        start, end = self._cursor, self._cursor + len(text)
        gap = start - len(self._cells)
        if gap > 0:
            self._cells.extend(" " * gap)
        if self._styles is None and self._style != PLAIN:
            self._styles = [PLAIN] * (len(self._cells) - max(gap, 0))
        if self._styles is not None:
            self._styles.extend([PLAIN] * max(gap, 0))
            self._styles[start:end] = [self._style] * len(text)
        self._cells[start:end] = text
        self._cursor = end


class LineStream:
    """A run's output for a screen on which nothing can be replaced: each line, with its ranks, once it is whole."""

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
        """The remaining lines: those without a newline, and the newest of streams that passed their limit."""
        for (rank, _), assembler in self._open.items():
            if assembler.current:
                yield from _prefixed((rank,), (assembler.take(),))
        for rank, tail in sorted(self._tails.items()):
            yield f"[{rank}] … {tail.lines:,} lines left out; jdist logs {rank} shows them"
            yield from _prefixed((rank,), tail.text.splitlines())


def _prefixed(ranks: Iterable[int], lines: Iterable[str]) -> Iterator[str]:
    prefix = RankSet(ranks)
    return (f"[{prefix}] {line}" for line in lines)
