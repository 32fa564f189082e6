"""The few pieces of HTML that a run's output is made of, readable without any style: prefixes, emphasis and
``<details>`` carry the meaning. Colours only from JupyterLab's variables, with fallbacks.
"""

import html

from jdist.notebook.text import ansi

_PRE = (
    "margin:0;padding:0;border:0;background:none;color:inherit;white-space:pre-wrap;overflow-wrap:anywhere;"
    "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px);line-height:1.4"
)
_MUTED = "opacity:.7"
_STDERR = "background:var(--jp-rendermime-error-background,rgba(255,80,80,.12))"
_BAR = "border-left:3px solid {};padding-left:8px;margin:4px 0"
_ERROR = _BAR.format("var(--jp-error-color1,#d32f2f)")
_NOTICE = _BAR.format("var(--jp-warn-color1,#e08600)")


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
    return f'<div style="{_NOTICE}">{pre(ansi.to_html(text))}</div>'


def picture(mime: str, base64: str, alt: str, width: object = None, height: object = None) -> str:
    """An image; ``width`` and ``height`` in CSS pixels where they are whole numbers."""
    size = "".join(f' {n}="{v}"' for n, v in (("width", width), ("height", height)) if type(v) is int)
    source = f"data:{mime};base64,{html.escape(base64)}"
    return f'<img src="{source}" alt="{html.escape(alt)}"{size} style="max-width:100%">'


def shown_by(who: str, shown: str, is_picture: bool) -> str:
    """A display under the ranks that made it (markup both); pictures stand side by side where there is room."""
    style = "display:inline-block;vertical-align:top;margin:2px 12px 2px 0" if is_picture else "margin:2px 0"
    return f'<div style="{style}"><div>{who}</div>{shown}</div>'
