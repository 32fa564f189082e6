"""Bars: how far something has come, as a line with a bar: part, bytes, rate and the time that is left. Pure."""

from __future__ import annotations

import html

from jdist.core.quantities import format_bytes, format_rate, format_whole_seconds

_WIDTH = 24


def bar(part: float) -> str:
    """``━━━━━━╌╌╌╌`` for a part of 0 to 1."""
    full = round(min(1.0, max(0.0, part)) * _WIDTH)
    return "━" * full + "╌" * (_WIDTH - full)


def transfer(done: int, total: int, rate: float) -> str:
    """``"62 % · 1.3 GB of 2.1 GB · 620 MB/s · 1 s left"``; ``rate`` in bytes a second, 0 where it is not known yet."""
    part = done / total if total else 1.0
    words = [f"{int(part * 100)} %", f"{format_bytes(done)} of {format_bytes(total)}"]
    if rate > 0:
        words += [format_rate(rate), f"{format_whole_seconds((total - done) / rate)} left"]
    return " · ".join(words)


def draw(what: str, part: float, words: str) -> dict[str, str]:
    """``{"text/plain", "text/html"}`` of the line."""
    percent = int(min(1.0, max(0.0, part)) * 100)
    label = html.escape(what)
    meter = f'<progress value="{percent}" max="100" aria-label="{label}" style="vertical-align:middle"></progress>'
    return {
        "text/plain": f"{what} {bar(part)} {words}",
        "text/html": f"<div>{label} {meter} {html.escape(words)}</div>",
    }


def total_line(text: str, moved: int, seconds: float) -> str:
    """What is left of it in the end."""
    rate = f" · {format_rate(moved / seconds)}" if seconds > 0 else ""
    return f"{text} · {format_bytes(moved)} in {seconds:.1f} s{rate}"
