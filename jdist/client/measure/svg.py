"""SVG: a still picture of a timeline, for pages that run no code. A row per rank, pale where it waits. Pure.

Text takes the colour of its surroundings (``currentColor``) and bars are mid-tones, readable in light and dark themes.
Its size is bounded: calls narrower than a few pixels are added up in columns, whose height is their part of the time.
"""

import html
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jdist.client.measure.report import TraceReport, title
from jdist.client.measure.timeline import Bar, Row, lanes
from jdist.core.quantities import format_interval

WIDTH = 980
_LEFT, _RIGHT, _TOP = 64, 14, 8
_PLOT = WIDTH - _LEFT - _RIGHT
# White text on them has a contrast of 4.5 and more; they stand out from white and from black by 3 and more.
_COLOURS = ("#2f6fb5", "#a8541c", "#3a7d3a", "#7d4fa3", "#a6374f", "#27797f", "#7b681c", "#5d6570")
_ELEMENTS = 1200  # The most bars and columns, about, whatever the number of ranks and calls.
_NARROWEST = 3.0
_MOST_LANES = 4
_LETTER = 5.9  # Width of a letter of size 10, pixels.
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(report: TraceReport, colour: str = "") -> str:
    """The picture; ``colour`` of its text where it is shown as a file and has no surroundings."""
    return _Picture(report).draw(colour)


class _Picture:
    """One report, drawn to scale."""

    def __init__(self, report: TraceReport) -> None:
        self._report = report
        t = report.timeline
        self._span = max(t.span, 1e-6)
        self._tall = 26.0 if len(t.rows) <= 8 else 20.0 if len(t.rows) <= 16 else 14.0
        self._bottom = _TOP + len(t.rows) * (self._tall + 4)
        self._rows = [(row, _in_lanes(row)) for row in t.rows]
        shown = sum(len(split) for _, split in self._rows)
        self._least = max(_NARROWEST, shown * _PLOT / _ELEMENTS) * self._span / _PLOT  # Seconds of a bar of its own.
        self._fill = {group: _COLOURS[i % len(_COLOURS)] for i, group in enumerate(report.groups or ("",))}

    def draw(self, colour: str) -> str:
        drawn = (part for i, (row, split) in enumerate(self._rows) for part in self._row(i, row, split))
        label = _escape(f"{self._report.headline}; {self._report.finding}")
        root = f' color="{colour}"' if colour else ""
        height = self._bottom + 40
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" width="{WIDTH}" '
            f'height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"{root} fill="currentColor" font-size="10" '
            'font-family="system-ui,sans-serif" style="max-width:100%;height:auto">'
            f"{''.join([*self._axis(), *drawn, *self._legend()])}</svg>"
        )

    def _x(self, moment: float) -> float:
        return _LEFT + min(max(moment / self._span, 0.0), 1.0) * _PLOT

    def _axis(self) -> Iterator[str]:
        """Upright lines at round times, named below."""
        step = 10.0 ** math.floor(math.log10(self._span / 4))
        step *= next(f for f in (1, 2, 5, 10) if self._span / (step * f) <= 8)
        for i in range(int(self._span / step * (1 + 1e-9)) + 1):
            x = self._x(i * step)
            yield f'<path d="M{x:.1f} {_TOP}V{self._bottom:.1f}" stroke="currentColor" stroke-opacity=".15"/>'
            anchor = "end" if x > WIDTH - 40 else "middle"
            yield _text(x, self._bottom + 11, format_interval(i * step), f'text-anchor="{anchor}" opacity=".75"')

    def _row(self, number: int, row: Row, split: Sequence[Sequence[Bar]]) -> Iterator[str]:
        top = _TOP + number * (self._tall + 4)
        middle, (start, end) = top + self._tall / 2, (self._x(row.began), self._x(row.ended))
        yield _text(_LEFT - 8, middle + 3.5, f"rank {row.rank}", 'text-anchor="end"')
        yield f'<path d="M{start:.1f} {middle:.1f}H{end:.1f}" stroke="currentColor" stroke-opacity=".45"/>'
        tall = self._tall / len(split)
        for i, lane in enumerate(split):
            y = top + i * tall
            crowds: dict[tuple[int, str], list[Bar]] = defaultdict(list)
            for bar in lane:
                if bar.ended - bar.began >= self._least:
                    yield from self._bar(bar, y, tall)
                else:
                    crowds[int(bar.began / self._least), bar.call.group].append(bar)
            for (at, group), bars in crowds.items():
                work, wait = sum(b.ended - b.work for b in bars), sum(b.work - b.began for b in bars)
                whole = max(self._least, work + wait)
                height = max(1.0, tall * (work + wait) / whole)
                left, right = self._x(at * self._least), self._x((at + 1) * self._least)
                look = _works(self._fill[group]) if work >= wait else _waits(self._fill[group])
                yield _rect(left, y + tall - height, right - left, height, look)

    def _bar(self, bar: Bar, y: float, tall: float) -> Iterator[str]:
        """The part that waits, then the part that works, with the call's name where there is room."""
        fill = self._fill[bar.call.group]
        left, work, right = self._x(bar.began), self._x(bar.work), self._x(bar.ended)
        if work > left:
            dashed = ' stroke-dasharray="3 2"' if bar.is_open else ""
            yield _rect(left, y + 0.5, work - left, tall - 1, _waits(fill) + dashed)
        if right > work:
            yield _rect(work, y, right - work, tall, _works(fill))
        at, room, how = max(((work, right - work, 'fill="#fff"'), (left, work - left, "")), key=lambda part: part[1])
        if tall >= 11 and (words := next((w for w in (title(bar.call), bar.call.op) if len(w) * _LETTER < room), "")):
            yield _text(at + 4, y + tall / 2 + 3.5, words, how)

    def _legend(self) -> Iterator[str]:
        """The meaning of the looks, and of the colours if there are several groups."""
        fill = next(iter(self._fill.values()))
        entries = [(_works(fill), "works"), (_waits(fill), "waits for another rank")]
        if len(self._fill) > 1:
            entries += [(_works(own), self._report.label(group)[:40]) for group, own in self._fill.items()]
        x, y = float(_LEFT), self._bottom + 30
        for look, words in entries:
            if x + 22 + len(words) * _LETTER > WIDTH:
                return
            yield _rect(x, y - 9, 16, 10, look) + _text(x + 22, y, words, 'opacity=".85"')
            x += 40 + len(words) * _LETTER


def _in_lanes(row: Row) -> list[list[Bar]]:
    split = lanes(row.bars) or [[]]
    further = [bar for lane in split[_MOST_LANES:] for bar in lane]
    return [*split[: _MOST_LANES - 1], *([*lane, *further] for lane in split[_MOST_LANES - 1 : _MOST_LANES])]


def _works(fill: str) -> str:
    return f'fill="{fill}"'


def _waits(fill: str) -> str:
    return f'fill="{fill}" fill-opacity=".2" stroke="{fill}" stroke-width=".8"'


def _text(x: float, y: float, words: str, how: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {how}>{_escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, how: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" {how}/>'


def _escape(text: str) -> str:
    return html.escape(_CONTROL.sub("\ufffd", text))
