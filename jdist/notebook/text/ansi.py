"""ANSI escape sequences: what a terminal colours, as HTML or without its colours.

Colours and bold are kept (ECMA-48 SGR 1, 22, 30-39, 40-49, 90-97, 100-107, 38/48 with 5 and 2); all else is dropped.
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

SEQUENCE = re.compile(
    r"\x1b\[(?P<args>[0-?]*)[ -/]*(?P<final>[@-~])"  # CSI
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and the other strings
    r"|\x1b[ -/]+[0-~]"  # character sets
    r"|\x1b[0-Z\\`-~]"  # two-character sequences
)
UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
"""The beginning of a sequence at the very end of a piece of text; the next piece may bring the rest."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_BASIC = ("#5f6368", "#d64540", "#2a9152", "#b07d00", "#2f7de1", "#b04fb5", "#14919f", "#8a8f94")
_BRIGHT = ("#7d8287", "#e5534b", "#35a35a", "#b98a10", "#4a90f0", "#c462c8", "#1a9fad", "#9aa0a6")
"""Sixteen colours that can be read on white and on a dark theme alike."""


class Style(NamedTuple):
    """Foreground and background as SGR parameters (``"31"``, ``"38;5;208"``, ``""`` for the default), and bold."""

    fg: str = ""
    bg: str = ""
    bold: bool = False

    def sgr(self) -> str:
        """The sequence that sets this style after a reset; empty for the default style."""
        codes = [c for c in ("1" if self.bold else "", self.fg, self.bg) if c]
        return f"\x1b[{';'.join(codes)}m" if codes else ""

    def css(self) -> str:
        """The style as inline CSS declarations; empty for the default style."""
        rules = []
        if self.fg:
            rules.append(f"color:{_colour(self.fg)}")
        if self.bg:
            paint = _colour(self.bg)
            veil = "" if ";" in self.bg else "40"  # a named one is a mark under text of any theme: let it shine through
            rules.append(f"background-color:{paint}{veil}")
        if self.bold:
            rules.append("font-weight:bold")
        return ";".join(rules)

    def after(self, args: str) -> Style:
        """This style once the SGR sequence with these parameters has been read."""
        codes = [int(a) if a.isdecimal() and len(a) < 5 else 0 for a in args.replace(":", ";").split(";")]
        style = self
        i = 0
        while i < len(codes):
            if codes[i] in (38, 48):
                used, colour = _extended(codes[i + 1 :])
                if colour:
                    code = f"{codes[i]};{colour}"
                    style = style._replace(fg=code) if codes[i] == 38 else style._replace(bg=code)
                i += 1 + used
            else:
                style = _after_one(style, codes[i])
                i += 1
        return style


PLAIN = Style()


def _after_one(style: Style, code: int) -> Style:
    if code == 0:
        return PLAIN
    if code in (1, 22):
        return style._replace(bold=code == 1)
    if 30 <= code <= 37 or 90 <= code <= 97:
        return style._replace(fg=str(code))
    if 40 <= code <= 47 or 100 <= code <= 107:
        return style._replace(bg=str(code))
    if code == 39:
        return style._replace(fg="")
    if code == 49:
        return style._replace(bg="")
    return style


def _extended(codes: list[int]) -> tuple[int, str]:
    """How many parameters belong to a 256-colour or RGB colour, and these as text (empty when malformed)."""
    if len(codes) >= 2 and codes[0] == 5:
        return 2, f"5;{codes[1]}" if codes[1] < 256 else ""
    if len(codes) >= 4 and codes[0] == 2:
        return 4, ";".join(map(str, codes[:4])) if max(codes[1:4]) < 256 else ""
    return len(codes), ""


def _colour(code: str) -> str:
    parts = [int(p) for p in code.split(";")]
    if len(parts) == 1:
        base = parts[0] - 10 if parts[0] in range(40, 48) or parts[0] in range(100, 108) else parts[0]
        return _BASIC[base - 30] if base < 90 else _BRIGHT[base - 90]
    if parts[1] == 2:
        return "#{:02x}{:02x}{:02x}".format(*parts[2:5])
    return _indexed(parts[2])


def _indexed(n: int) -> str:
    """Colour ``n`` of xterm's 256: 16 named, a 6 x 6 x 6 cube, 24 greys."""
    if n < 16:
        return _BASIC[n] if n < 8 else _BRIGHT[n - 8]
    if n >= 232:
        return f"#{8 + 10 * (n - 232):02x}" + f"{8 + 10 * (n - 232):02x}" * 2
    levels = (0, 95, 135, 175, 215, 255)
    n -= 16
    return f"#{levels[n // 36]:02x}{levels[n // 6 % 6]:02x}{levels[n % 6]:02x}"


def strip(text: str) -> str:
    """The text without escape sequences and control characters; newlines and tabs stay."""
    if "\x1b" in text:
        text = SEQUENCE.sub("", text)
    return _CONTROL.sub("", text)


def to_html(text: str) -> str:
    """The text escaped for HTML, its colours and bold as spans with inline style."""
    if "\x1b" not in text:
        return html.escape(_CONTROL.sub("", text))
    out: list[str] = []
    style, at = PLAIN, 0
    for match in SEQUENCE.finditer(text):
        out.append(_span(style, text[at : match.start()]))
        at = match.end()
        if match["final"] == "m":
            style = style.after(match["args"])
    out.append(_span(style, text[at:]))
    return "".join(out)


def _span(style: Style, text: str) -> str:
    escaped = html.escape(_CONTROL.sub("", text))
    if not escaped or style == PLAIN:
        return escaped
    return f'<span style="{style.css()}">{escaped}</span>'
