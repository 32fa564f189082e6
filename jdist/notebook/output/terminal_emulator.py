"""Lines made of the raw text of streams, as a terminal would show them: ``\\r`` and ``\\b`` go back, ``ESC[K`` erases,
``ESC[A`` goes up, colours stay with their characters.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from jdist.core.messages.runs import Display, OutputItem, Tail, Text
from jdist.core.outcome import WIDGET_VIEW, unconnected
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.text import folding
from jdist.notebook.text.markup import PLAIN, SEQUENCE, UNFINISHED, Style, left_out, without_widgets

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST_SEQUENCE = 4096  # An escape sequence that has not ended after so many characters is none.
_WIDEST = 100_000  # ESC[nC and ESC[nG move no further right than this.
_TALLEST = 100  # ESC[nA moves no further up than this at once.


class _Row:
    """A line of cells that can still change, with the style of each."""

    __slots__ = ("cells", "styles")

    def __init__(self) -> None:
        self.cells: list[str] = []
        self.styles: list[Style] | None = None  # None while the whole line has the default style

    @property
    def text(self) -> str:
        """The line as it looks now; colours as SGR sequences, reset at its end."""
        if self.styles is None:
            return "".join(self.cells)
        out, last = [], PLAIN
        for cell, style in zip(self.cells, self.styles, strict=True):
            if style != last:
                out.append(("\x1b[0m" if last != PLAIN else "") + style.sgr())
                last = style
            out.append(cell)
        return "".join(out) + ("\x1b[0m" if last != PLAIN else "")

    def put(self, text: str, at: int, style: Style) -> None:
        """Write over what stands there."""
        end = at + len(text)
        gap = at - len(self.cells)
        if gap > 0:
            self.cells.extend(" " * gap)
        if self.styles is None and style != PLAIN:
            self.styles = [PLAIN] * (len(self.cells) - max(gap, 0))
        if self.styles is not None:
            self.styles.extend([PLAIN] * max(gap, 0))
            self.styles[at:end] = [style] * len(text)
        self.cells[at:end] = text

    def blank(self, end: int) -> None:
        """Erase what stands before ``end``."""
        end = min(end, len(self.cells))
        self.cells[:end] = " " * end
        if self.styles is not None:
            self.styles[:end] = [PLAIN] * end

    def cut(self, at: int) -> None:
        """Erase what stands from ``at`` on."""
        del self.cells[at:]
        if self.styles is not None:
            del self.styles[at:]


class LineAssembler:
    """The lines of one stream that can still change: the one with the cursor, and those below it.

    Lines above the cursor are finished, and are returned. When the cursor moves back up to a finished line, as with
    nested progress bars, ``take_back`` is called to get that line again; it returns None if there is none.
    """

    __slots__ = ("_below", "_cursor", "_done", "_pending", "_row", "_style", "_take_back")

    def __init__(self, take_back: Callable[[], str | None] = lambda: None) -> None:
        self._take_back = take_back
        self._row = _Row()
        self._below: list[_Row] = []  # The next one first.
        self._done: list[str] = []  # The lines that the text being read has ended.
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
        for part in parts[:-1]:
            is_blank = not (self._row.cells or self._cursor or self._below)
            if is_blank and self._style == PLAIN and not _CONTROL.search(part):
                self._done.append(part)
            else:
                self._write(part)
                self._end_line()
        self._write(parts[-1])
        done, self._done = self._done, []
        return done

    @property
    def current(self) -> list[str]:
        """The unfinished lines as they look now, those at the end left out that are blank."""
        lines = [row.text for row in self._below]
        while lines and not lines[-1].strip():
            lines.pop()
        first = self._row.text
        return [first, *lines] if first.strip() or lines else []

    def take(self) -> list[str]:
        """Ends the unfinished lines and returns them; the colour goes on in the next one, as in a terminal."""
        lines = self.current
        self._row, self._below, self._cursor = _Row(), [], 0
        return lines

    def _end_line(self) -> None:
        self._done.append(self._row.text)
        self._row = self._below.pop(0) if self._below else _Row()
        self._cursor = 0

    def _go_up(self) -> bool:
        """Move the cursor to the line above; False: there is none that could change."""
        text = self._done.pop() if self._done else self._take_back()
        if text is None:
            return False
        if self._row.cells or self._below:
            self._below.insert(0, self._row)
        self._row = _Row()
        self._restore(text)
        return True

    def _restore(self, text: str) -> None:
        """Put a line's text and colours into the empty row."""
        at, style, column = 0, PLAIN, 0
        for match in SEQUENCE.finditer(text):
            self._row.put(text[at : match.start()], column, style)
            column, at = len(self._row.cells), match.end()
            style = style.after(match["args"] or "")
        self._row.put(text[at:], column, style)

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
        elif final in ("A", "F"):
            for _ in range(min(max(1, count), _TALLEST)):
                if not self._go_up():
                    break
        elif final in ("B", "E"):
            for _ in range(min(max(1, count), len(self._below))):
                column = self._cursor
                self._end_line()
                self._cursor = column
        elif final == "J" and count == 0:  # all after the cursor
            self._row.cut(self._cursor)
            self._below.clear()
        elif final == "K" and count == 1:  # the line up to the cursor
            self._row.blank(self._cursor + 1)
        elif final == "K" and count in (0, 2):  # the line after the cursor, the whole line
            self._row.cut(self._cursor if count == 0 else 0)
        elif final == "C":
            self._cursor = min(self._cursor + max(1, count), _WIDEST)
        elif final == "D":
            self._cursor = max(0, self._cursor - max(1, count))
        elif final == "G":
            self._cursor = min(max(1, count) - 1, _WIDEST)
        if final in ("E", "F"):
            self._cursor = 0

    def _put(self, text: str) -> None:
        if text:
            self._row.put(text, self._cursor, self._style)
            self._cursor += len(text)


class LineStream:
    """A run's output for a screen on which nothing can be replaced: each line, with its ranks, once it is whole."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], LineAssembler] = {}
        self._tails: dict[int, Tail] = {}
        self._without_widgets: set[int] = set()  # The ranks whose first widget was noted.

    def feed(self, item: OutputItem) -> Iterator[str]:
        """The lines that this item ends, with their ranks before them."""
        for ranks, lines in self.whole(item):
            yield from _prefixed(ranks, lines)

    def close(self) -> Iterator[str]:
        """The remaining lines, with their ranks before them."""
        for ranks, lines in self.rest():
            yield from _prefixed(ranks, lines)

    def whole(self, item: OutputItem) -> Iterator[tuple[Sequence[int], Sequence[str]]]:
        """The lines that this item ends, and the ranks of which each is."""
        if isinstance(item, Text):
            whole: dict[tuple[str, ...], list[int]] = {}
            for rank in item.ranks:
                assembler = self._open.setdefault((rank, item.stream), LineAssembler())
                whole.setdefault(tuple(assembler.feed(item.text)), []).append(rank)
            yield from ((ranks, lines) for lines, ranks in whole.items() if lines)
        elif isinstance(item, Display) and WIDGET_VIEW in (data := unconnected(item.data)):
            if ranks := [rank for rank in item.ranks if rank not in self._without_widgets]:
                self._without_widgets.update(ranks)
                yield ranks, [without_widgets([data["text/plain"]])]
        elif isinstance(item, Display) and not item.is_update:
            yield item.ranks, str(data.get("text/plain", "")).splitlines()
        elif isinstance(item, Tail):
            self._tails[item.rank] = item

    def open_lines(self) -> list[str]:
        """The newest of the lines that are not whole yet, such as progress bars; the bars of many ranks are one."""
        found = ranks_by(
            (r, line) for (r, _), assembler in sorted(self._open.items()) for line in assembler.current[-1:]
        )
        known = {tuple(ranks): bar for line, ranks in found.items() if (bar := folding.find(line)) is not None}
        if len(found) > folding.MOST and len(known) == len(found) and len({*map(folding.kind, known.values())}) == 1:
            return [f"[{RankSet(rank for ranks in known for rank in ranks)}] {folding.summary(known)}"]
        lines = [f"[{RankSet(ranks)}] {line}" for line, ranks in found.items()]
        return (
            [*lines[: folding.MOST], f"… {len(lines) - folding.MOST} more"] if len(lines) > folding.MOST + 1 else lines
        )

    def rest(self) -> Iterator[tuple[Sequence[int], Sequence[str]]]:
        """The remaining lines: those without a newline, and the newest of streams that passed their limit."""
        for (rank, _), assembler in self._open.items():
            yield (rank,), assembler.take()
        for rank, tail in sorted(self._tails.items()):
            what, count = ("line", tail.lines) if tail.lines else ("character", tail.chars)
            yield (rank,), [*([left_out(count, [rank], what)] if count else ()), *tail.text.splitlines()]


def _prefixed(ranks: Iterable[int], lines: Iterable[str]) -> Iterator[str]:
    prefix = RankSet(ranks)
    return (f"[{prefix}] {line}" for line in lines)
