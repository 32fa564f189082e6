"""Small tables, and heat pictures of tensors, as ``%dist status``, ``groups``, ``list`` and ``show`` display them."""

import html
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"^[-+]?[\d,.]+(?:[eE][-+]?\d+)?\s?(?:%|s|ms|[kMG]i?B)?$|^[-\u2013\u2014]?$|^[-+]?(?:nan|inf)$")
_CELL = "padding:2px 10px 2px 0;vertical-align:top"
_MOST_CELLS = 32  # A picture has at most so many cells a side; larger tensors are averaged down.
_SHADES = 7


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, str]:
    """``{"text/plain", "text/html"}`` of a table; columns that hold only numbers are set to the right."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    columns = [[row[i] for row in cells if i < len(row)] for i in range(len(headers))]
    right = [any(column) and all(map(_NUMBER.match, column)) for column in columns]
    return {"text/plain": _plain(headers, cells, right), "text/html": _html(headers, cells, right)}


def _plain(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    grid = [[" ".join(cell.split("\n")) for cell in row] for row in (heads, *rows)]
    widths = [max(_width(row[i]) for row in grid if i < len(row)) for i in range(len(heads))]
    lines = []
    for row in grid:
        padded = []
        for cell, width, is_right in zip(row, widths, right, strict=False):
            space = " " * (width - _width(cell))
            padded.append(space + cell if is_right else cell + space)
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Columns that the text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _html(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    align = [f"text-align:{'right' if r else 'left'};{_CELL}" for r in right]
    top = "".join(f'<th style="{a}">{html.escape(h)}</th>' for h, a in zip(heads, align, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td style="{a}">{html.escape(c)}</td>' for c, a in zip(row, align, strict=False)) + "</tr>"
        for row in rows
    ).replace("\n", "<br>")
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def thumb_svg(matrix: Sequence[Sequence[float]]) -> str:
    """A small heat picture of a 2-D tensor: blue below zero, red above, darker further out, a cross for NaN and inf.

    Its title says shape, least and greatest value. Raises ValueError if the matrix is empty or rows' lengths differ.
    """
    if not matrix or not matrix[0] or len({len(row) for row in matrix}) != 1:
        raise ValueError("a picture needs a matrix with at least one row and column, rows of one length")
    cells = _averaged(matrix)
    numbers = [x for row in matrix for x in row if math.isfinite(x)]
    far = max((abs(x) for row in cells for x in row if math.isfinite(x)), default=0.0)
    bad = sum(map(len, matrix)) - len(numbers)
    title = f"{len(matrix)} x {len(matrix[0])}" + (f", {min(numbers):g} to {max(numbers):g}" if numbers else "")
    title += f", {bad} NaN or infinite" if bad else ""
    longest = max(len(cells), len(cells[0]))
    side = 12 if longest <= 8 else 8 if longest <= 16 else 4
    width, height = len(cells[0]), len(cells)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width * side}" height="{height * side}" '
        f'viewBox="0 0 {width} {height}" shape-rendering="crispEdges"><title>{html.escape(title)}</title>'
        f'<path fill="#f7f7f7" d="M0 0h{width}v{height}h-{width}z"/>{_paths(cells, far)}</svg>'
    )


def _averaged(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """The matrix with at most ``_MOST_CELLS`` rows and columns, each the mean of what it stands for."""
    out = []
    for top, bottom in _spans(len(matrix)):
        line = []
        for left, right in _spans(len(matrix[0])):
            part = [float(x) for row in matrix[top:bottom] for x in row[left:right]]
            line.append(sum(part) / len(part) if all(map(math.isfinite, part)) else math.nan)
        out.append(line)
    return out


def _spans(length: int) -> list[tuple[int, int]]:
    count = min(length, _MOST_CELLS)
    return [(i * length // count, (i + 1) * length // count) for i in range(count)]


def _paths(cells: Sequence[Sequence[float]], far: float) -> str:
    """One path for each shade, as that is much shorter than one element for each cell."""
    shades: dict[int, list[str]] = {}
    crosses = []
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            if not math.isfinite(value):
                crosses.append(f"M{x} {y}l1 1M{x + 1} {y}l-1 1")
            elif far and (shade := round(value / far * _SHADES)):
                shades.setdefault(shade, []).append(f"M{x} {y}h1v1h-1z")
    drawn = [f'<path fill="{_shade(s)}" d="{"".join(d)}"/>' for s, d in sorted(shades.items())]
    if crosses:
        drawn.append(f'<path stroke="#222" stroke-width=".15" d="{"".join(crosses)}"/>')
    return "".join(drawn)


def _shade(step: int) -> str:
    """From near white to dark: red for positive steps, blue for negative ones."""
    end = (178, 24, 43) if step > 0 else (33, 102, 172)
    part = abs(step) / _SHADES
    return "#{:02x}{:02x}{:02x}".format(*(round(247 + (e - 247) * part) for e in end))
