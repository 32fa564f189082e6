"""Tables: rows of text under column heads, as aligned text, as HTML, and as data for a front end that draws them."""

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

# A number with its unit, "-" or "?" in its place, or nothing; "≈" precedes an estimate, "(+3)" counts what is left out.
_NUMBER = re.compile(
    r"^(?:≈ )?[-+]?[\d,.]+(?:[eE][-+]?\d+)?(?: \(\+[\d,]+\))?\s?(?:%|[mµ]?s|[kMGT]?i?B(?:/s)?)?$"
    r"|^[-?\u2013\u2014]?$|^[-+]?(?:nan|NaN|inf)$"
)
_CELL = "padding:2px 12px 2px 0"
_NOTES = "opacity:.75"


class Table(Struct, frozen=True):
    """Rows of cells under column heads, with notes below. Columns that hold only numbers are set to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # A row may be shorter than the heads.
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> "Table":
        """A table of any objects; None becomes an empty cell."""
        cells = (tuple("" if cell is None else str(cell) for cell in row) for row in rows)
        return cls(tuple(columns), tuple(cells), tuple(notes))

    def without_empty(self, *columns: str) -> "Table":
        """The table without those of ``columns`` that hold nothing."""
        kept = [i for i, head in enumerate(self.columns) if head not in columns or any(self._column(i))]
        rows = (tuple(row[i] for i in kept if i < len(row)) for row in self.rows)
        return Table(tuple(self.columns[i] for i in kept), tuple(rows), self.notes)

    def text(self) -> str:
        """Heads, rows and notes, a line for each."""
        grid = [[" ".join(cell.split("\n")) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(_width(row[i]) for row in grid if i < len(row)) for i in range(len(self.columns))]
        lines = []
        for row in grid:
            padded = []
            for cell, width, is_right in zip(row, widths, self._right, strict=False):
                space = " " * (width - _width(cell))
                padded.append(space + cell if is_right else cell + space)
            lines.append("  ".join(padded).rstrip())
        return "\n".join((*lines, *self.notes))

    def html(self, pictures: Sequence[str] = ()) -> str:
        """The same as HTML; ``pictures``, which are markup, fill a further column from its top."""
        how = f"{_CELL};vertical-align:{'middle' if pictures else 'top'};text-align"
        styles = [f"{how}:{'right' if is_right else 'left'}" for is_right in self._right]
        heads = "".join(f'<th style="{s}">{html.escape(h)}</th>' for h, s in zip(self.columns, styles, strict=True))
        body = ""
        for at, row in enumerate(self.rows):
            texts = (html.escape(cell).replace("\n", "<br>") for cell in row)
            cells = (f'<td style="{s}">{text}</td>' for text, s in zip(texts, styles, strict=False))
            picture = f'<td style="{how}:left">{pictures[at]}</td>' if at < len(pictures) else ""
            body += f"<tr>{''.join(cells)}{picture}</tr>"
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        below = f'<div style="{_NOTES}">{notes}</div>' if notes else ""
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{below}"

    def json(self) -> dict[str, Any]:
        """Heads and rows as lists."""
        return {"heads": list(self.columns), "rows": [list(row) for row in self.rows]}

    def bundle(self) -> dict[str, str]:
        """Text and HTML by mime type."""
        return {"text/plain": self.text(), "text/html": self.html()}

    @property
    def _right(self) -> list[bool]:
        """Whether each column is set to the right."""
        columns = map(self._column, range(len(self.columns)))
        return [any(column) and all(map(_NUMBER.match, column)) for column in columns]

    def _column(self, at: int) -> list[str]:
        return [row[at] for row in self.rows if at < len(row)]


def _width(text: str) -> int:
    """Columns that the text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)
