"""SVG: the picture of a timeline. A row per rank, a bar per call: hatched while it waits, filled while it works. Pure.

Text takes the colour of its surroundings (``currentColor``) and bars are mid-tones without a background, so that one
picture is readable in light and dark themes. However many calls there are, its size is bounded: those narrower than a
few pixels are added up in columns whose height says for how much of the time there was a call.
"""

from __future__ import annotations

import hashlib
import html
import math
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from jdist.client.trace.layout import Bin, crowd, lanes
from jdist.client.trace.report import Report, title
from jdist.client.trace.timeline import Bar, Row
from jdist.core.quantities import format_interval

WIDTH = 980
_LEFT, _RIGHT, _TOP = 64, 14, 8
_PLOT = WIDTH - _LEFT - _RIGHT
_COLOURS = ("#2f6fb5", "#a8541c", "#3a7d3a", "#7d4fa3", "#a6374f", "#27797f", "#7b681c", "#5d6570")
"""White text on them has a contrast of 4.5 and more; they stand out from white and from black by 3 and more."""
_ELEMENTS = 1200
"""About so many bars and columns at most, whatever the number of ranks and calls."""
_NARROWEST = 3.0
_MOST_LANES = 4
_LETTER = 5.9
"""Width of a letter of size 10, pixels."""
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Scale(Struct, frozen=True):
    """Where a moment is drawn, and under which name this picture's patterns go."""

    span: float
    prefix: str
    colours: dict[str, int]

    def x(self, moment: float) -> float:
        return _LEFT + min(max(moment / self.span, 0.0), 1.0) * _PLOT

    def fill(self, group: str) -> str:
        return _COLOURS[self.colours.get(group, 0) % len(_COLOURS)]

    def hatch(self, group: str) -> str:
        return f"url(#{self.prefix}{self.colours.get(group, 0) % len(_COLOURS)})"


class _Place(Struct, frozen=True):
    """A row on the picture."""

    row: Row
    lanes: list[list[Bar]]
    y: float
    height: float
    heading: str


def svg(report: Report, colour: str = "") -> str:
    """The picture; ``colour`` of its text where it is shown as a file and has no surroundings."""
    t = report.timeline
    name = hashlib.sha256(repr((t.run, t.began, t.span, len(t.rows))).encode()).hexdigest()[:8]
    colours = {group: i for i, group in enumerate(report.groups)}
    scale = _Scale(max(t.span, 1e-6), f"jdist-{name}-", colours)
    places, bottom = _places(report)
    parts = [_patterns(scale, report.groups)]
    parts += _axis(scale, _TOP, bottom)
    least = max(_NARROWEST, sum(len(p.lanes) for p in places) * _PLOT / _ELEMENTS) * scale.span / _PLOT
    for place in places:
        parts += _row(report, scale, place, least)
    parts += _links(places, scale)
    is_crowded = any(crowd(lane, least)[1] for place in places for lane in place.lanes)
    legend, height = _legend(report, scale, bottom + 30, is_crowded)
    parts += legend
    root = f' color="{colour}"' if colour else ""
    says = _escape(f"{report.headline}; {report.finding}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{says}" '
        f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"{root} fill="currentColor" '
        f'font-family="system-ui,sans-serif" font-size="10" style="max-width:100%;height:auto">{"".join(parts)}</svg>'
    )


def _places(report: Report) -> tuple[list[_Place], float]:
    rows = report.timeline.rows
    height = 26.0 if len(rows) <= 8 else 20.0 if len(rows) <= 16 else 14.0
    nodes = [report.places.get(row.rank, "") for row in rows]
    places, y = [], float(_TOP)
    for i, row in enumerate(rows):
        heading = nodes[i] if len(set(nodes)) > 1 and (i == 0 or nodes[i - 1] != nodes[i]) else ""
        if heading:
            y += 15
        split = lanes(row.bars) or [[]]
        split = [*split[: _MOST_LANES - 1], [b for lane in split[_MOST_LANES - 1 :] for b in lane]]
        split = [lane for lane in split if lane] or [[]]
        tall = height + (len(split) - 1) * height * 0.45
        places.append(_Place(row, split, y, tall, heading))
        y += tall + 4
    return places, y


def _patterns(scale: _Scale, groups: Sequence[str]) -> str:
    made = [
        f'<pattern id="{scale.prefix}{i}" width="7" height="7" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="7" height="7" fill="{colour}" fill-opacity=".15"/>'
        f'<rect width="1.6" height="7" fill="{colour}" fill-opacity=".5"/></pattern>'
        for i, colour in enumerate(_COLOURS[: max(1, len(groups))])
    ]
    return f"<defs>{''.join(made)}</defs>"


def _axis(scale: _Scale, top: float, bottom: float) -> Iterator[str]:
    """Upright lines at round times, named below."""
    step = 10.0 ** math.floor(math.log10(scale.span / 4))
    step *= next(f for f in (1, 2, 5, 10) if scale.span / (step * f) <= 8)
    for i in range(int(scale.span / step * (1 + 1e-9)) + 1):
        x = scale.x(i * step)
        yield f'<path d="M{x:.1f} {top}V{bottom:.1f}" stroke="currentColor" stroke-opacity=".15"/>'
        anchor = "end" if x > WIDTH - 40 else "middle"
        label = format_interval(i * step)
        yield f'<text x="{x:.1f}" y="{bottom + 11:.1f}" text-anchor="{anchor}" opacity=".75">{label}</text>'


def _row(report: Report, scale: _Scale, place: _Place, least: float) -> Iterator[str]:
    row, y = place.row, place.y
    if place.heading:
        yield f'<text x="4" y="{y - 4:.1f}" opacity=".75">node {_escape(place.heading)}</text>'
    middle = y + place.height / 2
    yield f'<text x="{_LEFT - 8}" y="{middle + 3.5:.1f}" text-anchor="end">rank {row.rank}</text>'
    start, end = scale.x(row.began), scale.x(row.ended)
    edges = [start, *(x for pair in _covered(row.bars, scale) for x in pair), end]
    line = "".join(f"M{a:.1f} {middle:.1f}H{b:.1f}" for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a)
    yield f'<path d="{line}" stroke="currentColor" stroke-opacity=".45"/>'
    if not row.is_running:
        yield f'<path d="M{end:.1f} {middle - 4:.1f}v8" stroke="currentColor" stroke-opacity=".45"/>'
    tall = place.height / len(place.lanes)
    for i, lane in enumerate(place.lanes):
        wide, bins = crowd(lane, least)
        box = (y + i * tall, tall - (1 if len(place.lanes) > 1 else 0))
        for part in bins:
            yield _bin(report, scale, part, least, box)
        for bar in wide:
            yield _bar(report, scale, bar, box)


def _covered(bars: Sequence[Bar], scale: _Scale) -> Iterator[tuple[float, float]]:
    """Where bars stand that are wide enough to be seen, so that nothing is drawn behind them."""
    upto = 0.0
    for bar in sorted(bars, key=lambda b: b.began):
        left, right = max(scale.x(bar.began), upto), scale.x(bar.ended)
        if right - left >= _NARROWEST:
            yield left, right
            upto = right


def _bar(report: Report, scale: _Scale, bar: Bar, box: tuple[float, float]) -> str:
    y, tall = box
    group = bar.call.group
    left, middle, right = scale.x(bar.began), scale.x(bar.work), scale.x(bar.ended)
    if right - left < 1.5 and not bar.is_open:
        right = left + 1.5
    parts = [f"<title>{_escape(report.hover(bar))}</title>"]
    if middle - left > 0.2:
        outline = f'stroke="{scale.fill(group)}" stroke-width=".8"' + (' stroke-dasharray="3 2"' if bar.is_open else "")
        parts.append(_rect(left, y + 0.5, middle - left, tall - 1, f'fill="{scale.hatch(group)}" {outline}'))
    if right - middle > 0.2:
        parts.append(_rect(middle, y, right - middle, tall, f'fill="{scale.fill(group)}"'))
    if bar.is_open:
        parts.append(f'<path d="M{right:.1f} {y:.1f}v{tall:.1f}" stroke="{scale.fill(group)}" stroke-dasharray="2 2"/>')
    parts += _words(report, bar, (left, middle, right), box)
    return f"<g>{''.join(parts)}</g>"


def _words(report: Report, bar: Bar, edges: tuple[float, float, float], box: tuple[float, float]) -> Iterator[str]:
    """The call's name in the part that works, else in the part that waits, with whom it waits for."""
    y, tall = box
    if tall < 11:
        return
    left, middle, right = edges
    base = y + tall / 2 + 3.5
    inside = _fitting([title(bar.call), bar.call.op], right - middle - 6)
    if inside:
        yield f'<text x="{middle + 4:.1f}" y="{base:.1f}" fill="#fff" pointer-events="none">{_escape(inside)}</text>'
    waits = f"waits {report.waited_for(bar)}" if bar.charged else "waits"
    choices = [waits, "waits"] if inside else [f"{title(bar.call)} {waits}", title(bar.call), bar.call.op]
    words = _fitting(choices, middle - left - 6)
    if words:
        yield f'<text x="{left + 4:.1f}" y="{base:.1f}" pointer-events="none">{_escape(words)}</text>'


def _fitting(choices: Sequence[str], width: float) -> str:
    return next((c for c in choices if len(c) * _LETTER <= width), "")


def _bin(report: Report, scale: _Scale, part: Bin, width: float, box: tuple[float, float]) -> str:
    y, tall = box
    left, right = scale.x(part.at), scale.x(part.at + width)
    work = max(part.working * tall, 1.0) if part.working else 0.0
    wait = min(max(part.waiting * tall, 1.0), tall - work) if part.waiting else 0.0
    calls = sum(n for _, n in part.counts)
    most = ", ".join(f"{n:,} {op}" for op, n in part.counts[:4])
    what = (
        f"{calls:,} calls from {format_interval(part.at)} to {format_interval(part.at + width)}: {most}\n"
        f"working {part.working:.0%} and waiting {part.waiting:.0%} of this time; mostly {report.label(part.group)}"
    )
    tick = f'<path d="M{left:.1f} {y:.1f}v{tall:.1f}" stroke="{scale.fill(part.group)}" stroke-dasharray="2 2"/>'
    return (
        f"<g><title>{_escape(what)}</title>"
        + ("" if work + wait else tick)
        + _rect(left, y + tall - work - wait, right - left, wait, f'fill="{scale.hatch(part.group)}"')
        + _rect(left, y + tall - work, right - left, work, f'fill="{scale.fill(part.group)}"')
        + "</g>"
    )


def _links(places: Sequence[_Place], scale: _Scale) -> Iterator[str]:
    """An upright line through all who were waiting, at the moment the last one came, with a dot where that one is."""
    at = {p.row.rank: p.y + p.height / 2 for p in places}
    waits: dict[int, list[Bar]] = {}
    for bar in (b for p in places for b in p.row.bars):
        if bar.waited * _PLOT / scale.span >= 16 and math.isfinite(bar.came):
            waits.setdefault(bar.meeting, []).append(bar)
    for bars in list(waits.values())[:100]:
        last = max(bars, key=lambda b: b.came)
        source = at.get(max(last.charged, key=lambda c: c[1])[0])
        if source is None:
            continue
        ys = [source, *(at[b.rank] for b in bars)]
        x = scale.x(last.came)
        yield (
            f'<path d="M{x:.1f} {min(ys):.1f}V{max(ys):.1f}" stroke="currentColor" stroke-opacity=".7" '
            f'stroke-dasharray="1 2" pointer-events="none"/>'
            f'<circle cx="{x:.1f}" cy="{source:.1f}" r="3" pointer-events="none"/>'
        )


def _legend(report: Report, scale: _Scale, y: float, is_crowded: bool) -> tuple[list[str], float]:
    """What colours and patterns mean, in as many lines as it takes; and the height of the picture."""
    first = report.groups[0] if report.groups else ""
    fill, hatch = scale.fill(first), scale.hatch(first)
    entries = [
        (_rect(0, 0, 16, 10, f'fill="{fill}"'), "works"),
        (_rect(0, 0, 16, 10, f'fill="{hatch}" stroke="{fill}" stroke-width=".8"'), "waits for another rank"),
        ('<circle cx="8" cy="5" r="3"/>', "the last one comes"),
    ]
    if any(b.is_open for row in report.timeline.rows for b in row.bars):
        mark = f'fill="{hatch}" stroke="{fill}" stroke-width=".8" stroke-dasharray="3 2"'
        entries.append((_rect(0, 0, 16, 10, mark), "not ended, or its end was not seen"))
    if is_crowded:
        mark = _rect(0, 0, 16, 5, f'fill="{hatch}"') + _rect(0, 5, 16, 5, f'fill="{fill}"')
        entries.append((mark, "many short calls: the height is their part of the time"))
    if len(report.groups) > 1 or (first and report.label(first) != "world"):
        coloured = ((g, _rect(0, 0, 16, 10, f'fill="{scale.fill(g)}"')) for g in report.groups[:12])
        entries += [(mark, report.label(group)[:40]) for group, mark in coloured]
        if len(report.groups) > 12:
            entries.append(("", f"and {len(report.groups) - 12} more groups"))
    parts, x = [], float(_LEFT)
    for mark, words in entries:
        wide = 22 + len(words) * _LETTER + 18
        if x + wide > WIDTH and x > _LEFT:
            x, y = float(_LEFT), y + 16
        shape = f'<g transform="translate({x:.0f} {y - 9:.0f})">{mark}</g>'
        parts.append(f'{shape}<text x="{x + 22:.0f}" y="{y:.0f}" opacity=".85">{_escape(words)}</text>')
        x += wide
    return parts, y + 8


def _rect(x: float, y: float, width: float, height: float, how: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" {how}/>'


def _escape(text: str) -> str:
    return html.escape(_CONTROL.sub("\ufffd", text))
