"""Source: Python text in which statements are replaced, or which is set under an ``if``, and is else left as it is."""

from __future__ import annotations

import ast
import io
import tokenize

_STARTS, _ENDS = {"FSTRING_START", "TSTRING_START"}, {"FSTRING_END", "TSTRING_END"}


class Source:
    """A text and what is to be put in the place of parts of it. Positions are those of ``ast``."""

    def __init__(self, text: str):
        self._text = text
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._edits: list[tuple[int, int, str]] = []

    def of(self, node: ast.stmt) -> str:
        """The statement's text."""
        begin, end = self._span(node)
        return self._text[begin:end]

    def replace(self, node: ast.stmt, text: str) -> None:
        """Put ``text`` in the statement's place; its further lines are set under its first."""
        begin, end = self._span(node)
        margin = self._lines[node.lineno - 1][: begin - self._starts[node.lineno - 1]]
        if "\n" in text and text != self._text[begin:end] and margin and not margin.strip():
            text = indented(text, margin).removeprefix(margin)
        self._edits.append((begin, end, text))

    def edited(self) -> str:
        """The text as it is to be."""
        text = self._text
        for begin, end, new in sorted(self._edits, reverse=True):
            text = text[:begin] + new + text[end:]
        return text

    def _span(self, node: ast.stmt) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno or 0, node.end_col_offset or 0)

    def _at(self, line: int, column: int) -> int:
        """ast counts columns in bytes of UTF-8."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def indented(text: str, margin: str = "    ") -> str:
    """The text set under something; lines that begin inside a string are part of its value, and stay."""
    inside = _lines_in_strings(text)
    lines = text.split("\n")
    return "\n".join(line if not line.strip() or n in inside else margin + line for n, line in enumerate(lines, 1))


def _lines_in_strings(text: str) -> set[int]:
    """Numbers, from 1, of the lines that begin inside a string."""
    found: set[int] = set()
    begun: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            found.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind in _STARTS:
            begun.append(token.start[0])
        elif kind in _ENDS:
            found.update(range(begun.pop() + 1, token.end[0] + 1))
    return found
