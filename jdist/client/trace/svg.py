"""SVG: the picture of a timeline. A row per rank, a bar per call: hatched while it waits, filled while it works. Pure.

Text takes the colour of its surroundings (``currentColor``) and bars are mid-tones, readable in light and dark themes.
Its size is bounded: calls narrower than a few pixels are added up in columns, whose height is their part of the time.
"""

import hashlib
import html
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from jdist.client.trace.report import TraceReport, title
from jdist.client.trace.timeline import Bar, Row, lanes
from jdist.core.quantities import format_interval

WIDTH = 980
_LEFT, _RIGHT, _TOP = 64, 14, 8
_PLOT = WIDTH - _LEFT - _RIGHT
# White text on them has a contrast of 4.5 and more; they stand out from white and from black by 3 and more.
_COLOURS = ("#2f6fb5", "#a8541c", "#3a7d3a", "#7d4fa3", "#a6374f", "#27797f", "#7b681c", "#5d6570")
_ELEMENTS = 1200  # The most bars and columns, about, whatever the number of ranks and calls.
_NARROWEST = 3.0
_MOST_LANES = 4
_MOST_LINKS = 100
_MOST_GROUPS = 12
_LETTER = 5.9  # Width of a letter of size 10, pixels.
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DASHED = 'stroke-dasharray="3 2"'


def svg(report: TraceReport, colour: str = "") -> str:
    """The picture; ``colour`` of its text where it is shown as a file and has no surroundings."""
    return _Picture(report).draw(colour)


class Bin(Struct, frozen=True):
    """Calls in a stretch of time that are too narrow to be drawn one by one, and their parts (0 to 1) of it."""

    at: float
    working: float
    waiting: float
    counts: tuple[tuple[str, int], ...]
    group: str  # The group of most of the calls.


def crowd(bars: Sequence[Bar], width: float) -> tuple[list[Bar], list[Bin]]:
    """The bars as wide as ``width`` seconds or wider, or alone there, and the rest in bins of that width."""
    drawn = [b for b in bars if b.ended - b.began >= width]
    narrow: dict[int, list[Bar]] = defaultdict(list)
    for bar in bars:
        if bar.ended - bar.began < width:
            narrow[int(bar.began / width)].append(bar)
    bins = []
    for number, part in sorted(narrow.items()):
        if len(part) == 1:
            drawn += part
            continue
        working, waiting = sum(b.ended - b.work for b in part), sum(b.work - b.began for b in part)
        whole = max(width, working + waiting)
        ops, groups = Counter(b.call.op for b in part), Counter(b.call.group for b in part)
        group = groups.most_common(1)[0][0]
        bins.append(Bin(number * width, working / whole, waiting / whole, tuple(ops.most_common()), group))
    return sorted(drawn, key=lambda b: b.began), bins


class _RowBox(Struct, frozen=True):
    """A rank's row on the picture."""

    row: Row
    lanes: list[list[Bar]]
    y: float
    height: float
    heading: str

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


class _Picture:
    """One report, drawn to scale."""

    def __init__(self, report: TraceReport):
        self._report = report
        self._timeline = t = report.timeline
        self._groups = report.groups or ("",)
        self._span = max(t.span, 1e-6)
        name = hashlib.sha256(repr((t.run, t.began, t.span, len(t.rows))).encode()).hexdigest()[:8]
        self._patterns = {f"jdist-{name}-{i}": colour for i, colour in enumerate(_COLOURS[: len(self._groups)])}
        self._fill = dict(zip(self._groups, itertools.cycle(_COLOURS), strict=False))
        hatches = itertools.cycle(f"url(#{pattern})" for pattern in self._patterns)
        self._hatch = dict(zip(self._groups, hatches, strict=False))
        self._boxes, self._bottom = self._layout()
        lane_count = sum(len(box.lanes) for box in self._boxes)
        # Seconds of the shortest call that is drawn by itself.
        self._least = max(_NARROWEST, lane_count * _PLOT / _ELEMENTS) * self._span / _PLOT

    def draw(self, colour: str) -> str:
        patterns = [
            f'<pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="7" height="7" fill="{fill}" fill-opacity=".15"/>'
            f'<rect width="1.6" height="7" fill="{fill}" fill-opacity=".5"/></pattern>'
            for name, fill in self._patterns.items()
        ]
        rows = (part for box in self._boxes for part in self._row(box))
        legend, height = self._legend(self._bottom + 30)
        root = f' color="{colour}"' if colour else ""
        label = _escape(f"{self._report.headline}; {self._report.finding}")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" width="{WIDTH}" '
            f'height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"{root} fill="currentColor" font-size="10" '
            'font-family="system-ui,sans-serif" style="max-width:100%;height:auto">'
            f"<defs>{''.join(patterns)}</defs>{''.join([*self._axis(), *rows, *self._links(), *legend])}</svg>"
        )

    def _layout(self) -> tuple[list[_RowBox], float]:
        """The rows from top to bottom, each node's below its heading, and where they end."""
        rows = self._timeline.rows
        height = 26.0 if len(rows) <= 8 else 20.0 if len(rows) <= 16 else 14.0
        nodes = [self._report.places.get(row.rank, "") for row in rows]
        boxes, y = [], float(_TOP)
        for i, row in enumerate(rows):
            heading = nodes[i] if len(set(nodes)) > 1 and (i == 0 or nodes[i - 1] != nodes[i]) else ""
            y += 15 * bool(heading)
            split = lanes(row.bars) or [[]]
            if len(split) > _MOST_LANES:
                split[_MOST_LANES - 1 :] = [[bar for lane in split[_MOST_LANES - 1 :] for bar in lane]]
            tall = height + (len(split) - 1) * height * 0.45
            boxes.append(_RowBox(row, split, y, tall, heading))
            y += tall + 4
        return boxes, y

    def _x(self, moment: float) -> float:
        return _LEFT + min(max(moment / self._span, 0.0), 1.0) * _PLOT

    def _axis(self) -> Iterator[str]:
        """Upright lines at round times, named below."""
        step = 10.0 ** math.floor(math.log10(self._span / 4))
        step *= next(f for f in (1, 2, 5, 10) if self._span / (step * f) <= 8)
        for i in range(int(self._span / step * (1 + 1e-9)) + 1):
            x = self._x(i * step)
            yield _path(f"M{x:.1f} {_TOP}V{self._bottom:.1f}", ".15")
            anchor = "end" if x > WIDTH - 40 else "middle"
            yield _text(x, self._bottom + 11, format_interval(i * step), f'text-anchor="{anchor}" opacity=".75"')

    def _row(self, box: _RowBox) -> Iterator[str]:
        row = box.row
        if box.heading:
            yield _text(4, box.y - 4, f"node {box.heading}", 'opacity=".75"')
        yield _text(_LEFT - 8, box.middle + 3.5, f"rank {row.rank}", 'text-anchor="end"')
        start, end = self._x(row.began), self._x(row.ended)
        edges = [start, *(x for pair in self._covered(row.bars) for x in pair), end]
        pieces = zip(edges[::2], edges[1::2], strict=True)
        yield _path("".join(f"M{a:.1f} {box.middle:.1f}H{b:.1f}" for a, b in pieces if b > a), ".45")
        if not row.is_running:
            yield _path(f"M{end:.1f} {box.middle - 4:.1f}v8", ".45")
        tall = box.height / len(box.lanes)
        for i, lane in enumerate(box.lanes):
            wide, bins = crowd(lane, self._least)
            y, height = box.y + i * tall, tall - (len(box.lanes) > 1)
            yield from (self._bin(part, y, height) for part in bins)
            yield from (self._bar(bar, y, height) for bar in wide)

    def _covered(self, bars: Sequence[Bar]) -> Iterator[tuple[float, float]]:
        """The stretches with bars that are wide enough to be seen: nothing is drawn behind them."""
        upto = 0.0
        for bar in sorted(bars, key=lambda b: b.began):
            left, right = max(self._x(bar.began), upto), self._x(bar.ended)
            if right - left >= _NARROWEST:
                yield left, right
                upto = right

    def _bar(self, bar: Bar, y: float, tall: float) -> str:
        fill = self._fill[bar.call.group]
        left, middle, right = self._x(bar.began), self._x(bar.work), self._x(bar.ended)
        if right - left < 1.5 and not bar.is_open:
            right = left + 1.5
        parts = [f"<title>{_escape(self._report.hover(bar))}</title>"]
        if middle - left > 0.2:
            outline = f'stroke="{fill}" stroke-width=".8" {_DASHED if bar.is_open else ""}'
            hatch = f'fill="{self._hatch[bar.call.group]}"'
            parts.append(_rect(left, y + 0.5, middle - left, tall - 1, f"{hatch} {outline}"))
        if right - middle > 0.2:
            parts.append(_rect(middle, y, right - middle, tall, f'fill="{fill}"'))
        if bar.is_open:
            parts.append(f'<path d="M{right:.1f} {y:.1f}v{tall:.1f}" stroke="{fill}" stroke-dasharray="2 2"/>')
        if tall >= 11:
            parts += self._words(bar, (left, middle, right), y + tall / 2 + 3.5)
        return f"<g>{''.join(parts)}</g>"

    def _words(self, bar: Bar, edges: tuple[float, float, float], base: float) -> Iterator[str]:
        """The call's name in the part that works, else in the part that waits, with the ranks that it waits for."""
        left, middle, right = edges
        name = title(bar.call)
        inside = _fitting([name, bar.call.op], right - middle - 6)
        if inside:
            yield _text(middle + 4, base, inside, 'fill="#fff" pointer-events="none"')
        waits = f"waits {self._report.waited_for(bar)}" if bar.charged else "waits"
        choices = [waits, "waits"] if inside else [f"{name} {waits}", name, bar.call.op]
        if words := _fitting(choices, middle - left - 6):
            yield _text(left + 4, base, words, 'pointer-events="none"')

    def _bin(self, part: Bin, y: float, tall: float) -> str:
        end = part.at + self._least
        left, right = self._x(part.at), self._x(end)
        work = max(part.working * tall, 1.0) if part.working else 0.0
        wait = min(max(part.waiting * tall, 1.0), tall - work) if part.waiting else 0.0
        calls = sum(n for _, n in part.counts)
        most = ", ".join(f"{n:,} {op}" for op, n in part.counts[:4])
        what = (
            f"{calls:,} calls from {format_interval(part.at)} to {format_interval(end)}: {most}\n"
            f"working {part.working:.0%} and waiting {part.waiting:.0%} of this time; "
            f"mostly {self._report.label(part.group)}"
        )
        fill = self._fill[part.group]
        tick = f'<path d="M{left:.1f} {y:.1f}v{tall:.1f}" stroke="{fill}" stroke-dasharray="2 2"/>'
        waiting = _rect(left, y + tall - work - wait, right - left, wait, f'fill="{self._hatch[part.group]}"')
        working = _rect(left, y + tall - work, right - left, work, f'fill="{fill}"')
        return f"<g><title>{_escape(what)}</title>{'' if work + wait else tick}{waiting}{working}</g>"

    def _links(self) -> Iterator[str]:
        """An upright line through all calls that waited until the last rank came, with a dot on that rank's row."""
        at = {box.row.rank: box.middle for box in self._boxes}
        waits: dict[int, list[Bar]] = defaultdict(list)
        for bar in self._timeline.bars:
            if bar.waited * _PLOT / self._span >= 16 and math.isfinite(bar.came):
                waits[bar.meeting].append(bar)
        for bars in itertools.islice(waits.values(), _MOST_LINKS):
            last = max(bars, key=lambda b: b.came)
            source = at.get(max(last.charged, key=lambda c: c[1])[0])
            if source is not None:
                ys = [source, *(at[b.rank] for b in bars)]
                x = self._x(last.came)
                how = 'stroke-dasharray="1 2" pointer-events="none"'
                yield _path(f"M{x:.1f} {min(ys):.1f}V{max(ys):.1f}", ".7", how)
                yield f'<circle cx="{x:.1f}" cy="{source:.1f}" r="3" pointer-events="none"/>'

    def _legend(self, y: float) -> tuple[list[str], float]:
        """The meaning of colours and patterns, in as many lines as it takes; and the height of the picture."""
        parts, x = [], float(_LEFT)
        for mark, words in self._legend_entries():
            wide = 22 + len(words) * _LETTER + 18
            if x + wide > WIDTH and x > _LEFT:
                x, y = float(_LEFT), y + 16
            shape = f'<g transform="translate({x:.0f} {y - 9:.0f})">{mark}</g>'
            parts.append(shape + _text(x + 22, y, words, 'opacity=".85"'))
            x += wide
        return parts, y + 8

    def _legend_entries(self) -> Iterator[tuple[str, str]]:
        first = self._groups[0]
        fill, hatched = f'fill="{self._fill[first]}"', f'fill="{self._hatch[first]}"'
        outlined = f'{hatched} stroke="{self._fill[first]}" stroke-width=".8"'
        yield _rect(0, 0, 16, 10, fill), "works"
        yield _rect(0, 0, 16, 10, outlined), "waits for another rank"
        yield '<circle cx="8" cy="5" r="3"/>', "the last one comes"
        if any(bar.is_open for bar in self._timeline.bars):
            yield _rect(0, 0, 16, 10, f"{outlined} {_DASHED}"), "not ended, or its end was not seen"
        if any(crowd(lane, self._least)[1] for box in self._boxes for lane in box.lanes):
            mark = _rect(0, 0, 16, 5, hatched) + _rect(0, 5, 16, 5, fill)
            yield mark, "many short calls: the height is their part of the time"
        if first and (len(self._groups) > 1 or self._report.label(first) != "world"):
            for group in self._groups[:_MOST_GROUPS]:
                yield _rect(0, 0, 16, 10, f'fill="{self._fill[group]}"'), self._report.label(group)[:40]
            if len(self._groups) > _MOST_GROUPS:
                yield "", f"and {len(self._groups) - _MOST_GROUPS} more groups"


def _fitting(choices: Sequence[str], width: float) -> str:
    return next((c for c in choices if len(c) * _LETTER <= width), "")


def _text(x: float, y: float, words: str, how: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {how}>{_escape(words)}</text>'


def _path(d: str, opacity: str, how: str = "") -> str:
    return f'<path d="{d}" stroke="currentColor" stroke-opacity="{opacity}" {how}/>'


def _rect(x: float, y: float, width: float, height: float, how: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" {how}/>'


def _escape(text: str) -> str:
    return html.escape(_CONTROL.sub("\ufffd", text))
