"""Write text of ranks as HTML, and keep it within a size.

A run's output consists of a few pieces of HTML that are readable without any style: prefixes, emphasis and
``<details>`` carry the meaning, and colours come from JupyterLab's variables, with fallbacks. Text that is cut says
exactly what was left out.

Of ANSI escape sequences, ECMA-48 SGR 1, 22, 30-39, 40-49, 90-97, 100-107, and 38/48 with 5 and 2 become colours and
bold; all others are dropped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jdist.core.ranks import RankSet
from jdist.notebook.text.remedy_text import typed

_LONGEST_RANKS = 60  # A set of ranks whose name is longer is counted instead.
_MOST_WIDGETS = 3  # So many kinds of widgets are named.


def size(text: str) -> int:
    """Bytes of the text as it is stored in a notebook."""
    return len(text.encode("utf-8", "surrogatepass"))


def cut(text: str, most: int) -> str:
    """The text without its middle when it has more than ``most`` characters; its colours are dropped then, too."""
    if len(text) <= most:
        return text
    text = strip(text)
    if len(text) <= most:
        return text
    keep = max(0, most - 50)
    first = keep // 3
    return f"{text[:first]} … {len(text) - keep:,} characters left out … {text[len(text) - (keep - first) :]}"


def naming(ranks: Iterable[int]) -> str:
    """``rank 2`` or ``ranks 0-3,7``."""
    chosen = RankSet(ranks)
    text = str(chosen)
    if len(text) > _LONGEST_RANKS:
        return f"{len(chosen)} ranks ({text[:_LONGEST_RANKS].rsplit(',', 1)[0]},…)"
    return f"rank {text}" if len(chosen) == 1 else f"ranks {text}"


def left_out(count: int, ranks: Iterable[int], what: str = "line") -> str:
    """``… 1,234 lines of rank 3 left out; %dist logs -r 3 shows them``."""
    who = RankSet(ranks)
    whose = naming(who) if len(who) == 1 else f"each of {naming(who)}"
    shown = str(who) if len(str(who)) <= 80 else "RANK"
    noun, them = (what, "it") if count == 1 else (f"{what}s", "them")
    return f"… {count:,} {noun} of {whose} left out; {typed('logs')} -r {shown} shows {them}"


def without_widgets(names: Sequence[str]) -> str:
    """What stands for widgets that ranks displayed; ``names`` are those of their classes."""
    found = sorted(set(names))
    more = f" and {len(found) - _MOST_WIDGETS} more" if len(found) > _MOST_WIDGETS else ""
    return (
        f"{', '.join(found[:_MOST_WIDGETS])}{more}: widgets of ranks are not connected here, only below their cell in "
        "a notebook's page; print what they show"
    )


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


_PRE = (
    "margin:0;padding:0;border:0;background:none;color:inherit;white-space:pre-wrap;overflow-wrap:anywhere;"
    "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px);line-height:1.4"
)
_MUTED = "opacity:.7"
_STDERR = "background:var(--jp-rendermime-error-background,rgba(255,80,80,.12))"
_BAR = "border-left:3px solid {};padding-left:8px;margin:4px 0"
_ERROR = _BAR.format("var(--jp-error-color1,#d32f2f)")
_NOTICE = _BAR.format("var(--jp-warn-color1,#e08600)")


MARK = "<!--jdist-->"


def marked(markup: str) -> str:
    """A piece of a run's HTML, which is named elsewhere by its number among the marked ones. It contains no mark.

    A parser could not take the HTML apart: an open comment or a stray ``</div>`` in a display, as libraries write them,
    changes all that stands after it.
    """
    return f"{MARK}{markup}{MARK}"


def marked_pieces(markup: str) -> list[str]:
    """The marked pieces, in their order."""
    return markup.split(MARK)[1::2]


def pre(markup: str) -> str:
    """Text that keeps its line breaks."""
    return f'<pre style="{_PRE}">{markup}</pre>'


def prefix(text: str, is_stderr: bool = False) -> str:
    """``[0-3]``; in italics for what went to stderr."""
    tag, title = ("em", ' title="stderr"') if is_stderr else ("span", "")
    return f'<{tag}{title} style="{_MUTED}">{html.escape(text)}</{tag}>'


def stderr(markup: str) -> str:
    """A line of stderr, tinted as notebooks do."""
    return f'<span style="{_STDERR}">{markup}</span>'


def muted(text: str) -> str:
    """Plain text about the output, as against the output itself."""
    return f'<div style="{_MUTED}">{html.escape(text)}</div>'


def details(summary: str, markup: str, is_open: bool = False) -> str:
    """Something one click away. ``summary`` is plain text."""
    return (
        f'<details{" open" if is_open else ""} style="margin:2px 0">'
        f'<summary style="cursor:pointer">{html.escape(summary)}</summary>{markup}</details>'
    )


def error_box(headline: str, place: str, more: str) -> str:
    """A failure: what, where, and markup with the rest."""
    where = f"<div><code>{html.escape(place)}</code></div>" if place else ""
    return f'<div style="{_ERROR}"><strong>{html.escape(headline)}</strong>{where}{more}</div>'


def suggested(action: str, effect: str) -> str:
    """A suggested action, as it is typed, and its effect; both plain text."""
    return f"<div>→ <code>{html.escape(action)}</code> {html.escape(effect)}</div>"


def notice(text: str) -> str:
    """Something the user should know about this run."""
    return f'<div style="{_NOTICE}">{pre(to_html(text))}</div>'


def picture(mime: str, base64: str, alt: str, width: object = None, height: object = None) -> str:
    """An image; ``width`` and ``height`` in CSS pixels where they are whole numbers."""
    size = "".join(f' {n}="{v}"' for n, v in (("width", width), ("height", height)) if type(v) is int)
    source = f"data:{mime};base64,{html.escape(base64)}"
    return f'<img src="{source}" alt="{html.escape(alt)}"{size} style="max-width:100%">'


def shown_by(who: str, shown: str, is_picture: bool) -> str:
    """A display under the ranks that made it (markup both); pictures stand side by side where there is room."""
    style = "display:inline-block;vertical-align:top;margin:2px 12px 2px 0" if is_picture else "margin:2px 0"
    return f'<div style="{style}"><div>{who}</div>{shown}</div>'
