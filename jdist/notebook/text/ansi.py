"""ANSI escape sequences: colours and bold as HTML, or text without them. Kept are ECMA-48 SGR 1, 22, 30-39, 40-49,
90-97, 100-107, and 38/48 with 5 and 2; everything else is dropped.
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
# The beginning of a sequence at the very end of a piece of text; the next piece may bring the rest.
UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_NAMED = (  # Sixteen colours that can be read on a white and on a dark theme; the second eight are the bright ones.
    *("#5f6368", "#d64540", "#2a9152", "#b07d00", "#2f7de1", "#b04fb5", "#14919f", "#8a8f94"),
    *("#7d8287", "#e5534b", "#35a35a", "#b98a10", "#4a90f0", "#c462c8", "#1a9fad", "#9aa0a6"),
)


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
        rules = [f"color:{_colour(self.fg)}"] if self.fg else []
        if self.bg:
            # a named background is translucent: it is under text of any theme
            rules.append(f"background-color:{_colour(self.bg)}{'' if ';' in self.bg else '40'}")
        rules += ["font-weight:bold"] if self.bold else []
        return ";".join(rules)

    def after(self, args: str) -> Style:
        """This style once the SGR sequence with these parameters has been read."""
        codes = [int(a) if a.isdecimal() and len(a) < 5 else 0 for a in args.replace(":", ";").split(";")]
        style = self
        while codes:
            code = codes.pop(0)
            if code in (38, 48):
                length = {5: 2, 2: 4}.get(codes[0] if codes else 0, 0)
                colour, codes = codes[:length], codes[length:] if length else []
                if colour and len(colour) == length and max(colour[1:]) < 256:
                    text = f"{code};{';'.join(map(str, colour))}"
                    style = style._replace(fg=text) if code == 38 else style._replace(bg=text)
            elif code == 0:
                style = PLAIN
            elif code in (1, 22):
                style = style._replace(bold=code == 1)
            elif code in (*range(30, 38), 39, *range(90, 98)):
                style = style._replace(fg="" if code == 39 else str(code))
            elif code in (*range(40, 48), 49, *range(100, 108)):
                style = style._replace(bg="" if code == 49 else str(code))
        return style


PLAIN = Style()


def _colour(code: str) -> str:
    kind, *parts = map(int, code.split(";"))
    if not parts:
        return _NAMED[kind % 10 + (8 if kind >= 90 else 0)]
    if parts[0] == 2:
        return "#{:02x}{:02x}{:02x}".format(*parts[1:4])
    n = parts[1]  # of xterm's 256 colours: 16 named, a 6 x 6 x 6 cube, 24 greys
    if n < 16:
        return _NAMED[n]
    if n >= 232:
        return "#" + f"{8 + 10 * (n - 232):02x}" * 3
    levels, n = (0, 95, 135, 175, 215, 255), n - 16
    return f"#{levels[n // 36]:02x}{levels[n // 6 % 6]:02x}{levels[n % 6]:02x}"


def strip(text: str) -> str:
    """The text without escape sequences and control characters; newlines and tabs stay."""
    return _CONTROL.sub("", SEQUENCE.sub("", text) if "\x1b" in text else text)


def to_html(text: str) -> str:
    """The text escaped for HTML, its colours and bold as spans with inline style."""
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
    return f'<span style="{style.css()}">{escaped}</span>' if escaped and style != PLAIN else escaped
