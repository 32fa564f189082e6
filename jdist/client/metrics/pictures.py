"""Small pictures of numbers: a line over steps, a histogram, and a heat picture of a tensor. Pure."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

_SPARK_WIDTH, _SPARK_HEIGHT = 260, 44
_BLOCKS = " ▁▂▃▄▅▆▇█"
_BARS_WIDTH, _BARS_HEIGHT = 192, 40  # Pixels of a histogram, and of its highest bar.
_MOST_CELLS = 32  # A heat picture has at most so many cells a side; larger tensors are averaged down.
_SHADES = 7


def sparkline(steps: Sequence[float], mean: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    """The mean, and the range behind it, as a small SVG without words; numbers that are not finite are left out."""
    ends = [number for number in (*low, *high) if math.isfinite(number)]
    least, most = min(ends, default=0.0), max(ends, default=0.0)
    across = (_SPARK_WIDTH - 4) / ((steps[-1] - steps[0]) or 1.0)
    up = (_SPARK_HEIGHT - 6) / ((most - least) or 1.0)

    def points(numbers: Sequence[float]) -> list[str]:
        pairs = zip(steps, numbers, strict=True)
        return [f"{2 + (x - steps[0]) * across:.4g},{3 + (most - y) * up:.4g}" for x, y in pairs if math.isfinite(y)]

    return (
        f'<svg width="{_SPARK_WIDTH}" height="{_SPARK_HEIGHT}" role="img" aria-label="mean and range over ranks">'
        f'<polygon points="{" ".join([*points(high), *points(low)[::-1]])}" fill="#1f77b4" fill-opacity=".25"/>'
        f'<polyline points="{" ".join(points(mean))}" fill="none" stroke="#1f77b4" stroke-width="1.5"/></svg>'
    )


def histogram_line(counts: Sequence[int]) -> str:
    """A block character for each bin: the higher, the more elements; a space for none."""
    most = max(counts, default=0) or 1
    return "".join(_BLOCKS[math.ceil(count / most * (len(_BLOCKS) - 1))] for count in counts)


def histogram_svg(histogram: Mapping[str, Any]) -> str:
    """A bar for each bin, in the colour of the text; the title says where most elements are."""
    low, high, counts = histogram["low"], histogram["high"], histogram["counts"]
    most, size = max(counts), len(counts)
    bar = _BARS_WIDTH / size
    heights = [max(1.0, count / most * _BARS_HEIGHT) if count else 0.0 for count in counts]
    path = "".join(
        f"M{i * bar:.4g} {_BARS_HEIGHT}v-{height:.3g}h{bar - 1:.3g}v{height:.3g}z"
        for i, height in enumerate(heights)
        if height
    )
    title = f"{sum(counts):,} elements from {low:.4g} to {high:.4g}"
    if most:
        at = counts.index(most)
        ends = (low * (1 - i / size) + high * (i / size) for i in (at, at + 1))
        title += f"; the most, {most:,}, from {' to '.join(f'{end:.4g}' for end in ends)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{_BARS_WIDTH}" height="{_BARS_HEIGHT + 1}" '
        f'fill="currentColor" fill-opacity="0.65"><title>{title}</title><path d="{path}"/>'
        f'<rect y="{_BARS_HEIGHT}" width="{_BARS_WIDTH}" height="1"/></svg>'
    )


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
