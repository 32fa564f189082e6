"""Chart: curves over two logarithmic axes as an SVG that stands by itself. Pure.

Beside each curve a thin line shows linear growth from its first point, so that slower and faster growth can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 420
FONT = 'font-family="sans-serif" font-size="12"'
LEFT, RIGHT, TOP, BOTTOM = 70, 210, 50, 50
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#555555")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
"""Curves differ by more than their colour."""


@dataclass(frozen=True)
class Curve:
    """Points ``(x, y)`` under a name, x rising; all above 0."""

    name: str
    points: Sequence[tuple[float, float]]


class _Scale:
    """Where a value lies on an axis from ``begin`` to ``end`` (pixels)."""

    def __init__(self, values: Sequence[float], begin: float, end: float):
        self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self.high = max(self.high, self.low + 1)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self._begin + share * (self._end - self._begin), 1)

    @property
    def ticks(self) -> list[float]:
        return [10.0**n for n in range(self.low, self.high + 1)]


def chart(title: str, x_name: str, y_name: str, curves: Sequence[Curve]) -> str:
    """The SVG's text."""
    xs = [x for c in curves for x, _ in c.points]
    ys = [max(y, 1e-3) for c in curves for _, y in c.points]
    across, up = _Scale(xs, LEFT, WIDTH - RIGHT), _Scale(ys, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for tick in across.ticks:
        x = across.at(tick)
        parts.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    for tick in up.ticks:
        y = up.at(tick)
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 12}" text-anchor="end">{escape(x_name)}</text>')
    parts.append(f'<text x="{LEFT - 8}" y="{TOP - 10}" text-anchor="end">{escape(y_name)}</text>')
    for number, curve in enumerate(curves):
        parts += _curve(curve, number, across, up)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(curve: Curve, number: int, across: _Scale, up: _Scale) -> list[str]:
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
    points = [(across.at(x), up.at(max(y, 1e-3))) for x, y in curve.points]
    (x0, y0), (x1, _) = curve.points[0], curve.points[-1]
    top = min(x1, x0 * 10**up.high / max(y0, 1e-3))  # linear growth, as far as it fits
    linear = f"{across.at(x0)},{up.at(max(y0, 1e-3))} {across.at(top)},{up.at(max(y0, 1e-3) * top / x0)}"
    y_label = TOP + 20 + 36 * number
    x_label = WIDTH - RIGHT + 14
    pen = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
    line = " ".join(f"{x},{y}" for x, y in points)
    return [
        f'<polyline points="{linear}" fill="none" stroke="{colour}" stroke-width="0.6" opacity="0.6"/>',
        f'<polyline points="{line}" {pen}/>',
        *(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in points),
        f'<line x1="{x_label}" y1="{y_label - 4}" x2="{x_label + 26}" y2="{y_label - 4}" {pen}/>',
        f'<text x="{x_label + 32}" y="{y_label}">{escape(curve.name)}</text>',
        f'<text x="{x_label + 32}" y="{y_label + 14}" font-size="10" fill="#555">thin: if it grew as they do</text>',
    ]
