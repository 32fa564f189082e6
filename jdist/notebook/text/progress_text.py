"""Bars: how far something has come, as a line with a bar: part, bytes, rate and the time that is left. Pure."""

from __future__ import annotations

import html

_WIDTH = 24
_UNITS = ("B", "kB", "MB", "GB", "TB")


def bar(part: float) -> str:
    """``━━━━━━╌╌╌╌`` for a part of 0 to 1."""
    full = round(min(1.0, max(0.0, part)) * _WIDTH)
    return "━" * full + "╌" * (_WIDTH - full)


def amount(count: float) -> str:
    """``"1.3 GB"``; three digits are enough."""
    at = 0
    while count >= 999.5 and at + 1 < len(_UNITS):
        count, at = count / 1000, at + 1
    return f"{count:.0f} {_UNITS[at]}" if at == 0 or count >= 99.95 else f"{count:.1f} {_UNITS[at]}"


def duration(seconds: float) -> str:
    """``"3 s"``, ``"2 min 5 s"``, ``"1 h 4 min"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def transfer(done: int, total: int, rate: float) -> str:
    """``"62 % · 1.3 GB of 2.1 GB · 620 MB/s · 1 s left"``; ``rate`` in bytes a second, 0 where it is not known yet."""
    part = done / total if total else 1.0
    words = [f"{int(part * 100)} %", f"{amount(done)} of {amount(total)}"]
    if rate > 0:
        words += [f"{amount(rate)}/s", f"{duration((total - done) / rate)} left"]
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
    rate = f" · {amount(moved / seconds)}/s" if seconds > 0 else ""
    return f"{text} · {amount(moved)} in {seconds:.1f} s{rate}"
