"""The panel as HTML: what is known of a cluster. Readable without any style; colours are Jupyter's, with fallbacks that
suit light and dark. A state is a sign and a word, never a colour alone.
"""

import html
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from jdist.core.messages.observation import Observation
from jdist.core.messages.status import RankFacts, StatusReport
from jdist.core.quantities import format_count
from jdist.core.ranks import RankSet, describe_ranks
from jdist.core.remedy import sentence
from jdist.core.topology import Mesh
from jdist.notebook.text import remedy_text
from jdist.notebook.text.status_text import PAUSE_SIGN, group_rows, rank_row, status_bundle

_SIGNS = {"running": "▶", "idle": "○", "starting": "◔", "unreachable": "⚠", "gone": "✕"}
_NO_WIDGETS = "this front end shows no widgets, so here is the cluster as it was when the panel was opened"
_LINE = "1px solid var(--jp-border-color2,rgba(128,128,128,.35))"
_CELL = f"padding:2px 12px 2px 0;text-align:left;vertical-align:top;border-bottom:{_LINE}"
_NUMBER = _CELL.replace("text-align:left", "text-align:right") + ";font-variant-numeric:tabular-nums"
_MUTED = "opacity:.75"
_FONT = "font-size:var(--jp-ui-font-size1,13px);line-height:1.5;color:var(--jp-ui-font-color1,inherit)"
_BAR = "border-left:4px solid {};padding:2px 0 2px 10px;margin:6px 0"
_WARN = _BAR.format("var(--jp-warn-color1,#e08600)")
_ERROR = _BAR.format("var(--jp-error-color1,#d32f2f)")
_WORDS = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
_PRE = f"margin:0;{_WORDS};background:none;color:inherit;font-family:var(--jp-code-font-family,monospace)"


class Sight(Struct, frozen=True):
    """The panel's knowledge of its cluster at a moment."""

    state: str  # connecting, live, watching (nothing runs, so nothing is asked), silent (no answer) or gone.
    note: str = ""  # The reason for the state.
    found: StatusReport | None = None
    looked: Mapping[int, Observation] = {}  # The ranks' observations of themselves.


def draw_header(sight: Sight) -> str:
    """Name, ranks, nodes, backend, generation and state; and how many ranks do what."""
    if sight.found is None:
        return _box(f"<strong>{html.escape(sight.note or sight.state)}</strong>")
    facts, runs = sight.found.facts, sight.found.runs
    phase = ("a cell runs" if runs else "idle") if facts.phase == "ready" else facts.phase
    state = {"silent": "does not answer", "gone": "gone"}.get(sight.state, phase)
    words = [f"{facts.topology.world_size} ranks", format_count(facts.topology.nnodes, "node"), facts.backend]
    words += [f"generation {facts.generation}", f"<strong>{html.escape(state)}</strong>"]
    lines = [f"<strong>cluster {html.escape(facts.name)}</strong> · {' · '.join(words)}"]
    reason = sentence(facts.reason, facts.remedies, remedy_text.command)
    lines += [html.escape(text) for text in (reason, *sight.found.silences) if text]
    lines += [_run(sight.found.ranks, *run) for run in runs]
    return _box("".join(f"<div>{line}</div>" for line in lines))


def _run(rows: Sequence[RankFacts], number: int, state: str, ranks: tuple[int, ...], seconds: float) -> str:
    name = f"run {number} on ranks {RankSet(ranks)}"
    if state == "queued":
        return f"◔ {name}: queued"
    done = len(ranks) - sum(row.run == number for row in rows)
    if paused := [row.rank for row in rows if row.paused is not None and row.paused.run == number]:
        return f"{PAUSE_SIGN} {name}: {describe_ranks(paused, 'is')} paused"
    return f"▶ {name}: {html.escape(state)}, {done} of {len(ranks)} done, {seconds:.0f} s"


def draw_footer(sight: Sight) -> str:
    """How up to date the panel is."""
    text = {
        "connecting": "connecting",
        "live": "live: up to date within a second or so",
        "watching": "nothing runs, so nothing is asked; whatever changes is shown",
        "silent": "not up to date",
        "gone": "not up to date any more",
    }[sight.state]
    if sight.note and sight.found is not None:
        text += f": {sight.note}"
    return _box(html.escape(text), f"{_MUTED};margin-top:6px", 'role="status" ')


# ---------------------------------------------------------------- ranks


_HEADS = ("rank", "node", "device", "state", "doing", "CPU", "memory", "GPU", "GPU memory", "last line", "lost")
_ALWAYS = ("rank", "node", "state")
_NUMERIC = {"rank", "CPU", "memory", "GPU", "GPU memory"}


def draw_ranks(sight: Sight) -> str:
    """A row for each rank; columns that are empty are left out."""
    if sight.found is None or not sight.found.ranks:
        return ""
    rows = []
    for facts in sight.found.ranks:
        seen = sight.looked.get(facts.rank)
        cells = rank_row(facts, seen)
        sign = _SIGNS.get(facts.state, "·") if facts.paused is None else PAUSE_SIGN
        state = f"{sign} {cells['state']}"
        rows.append({**cells, "state": state, "device": seen.device if seen else "", "lost": facts.death})
    heads = [head for head in _HEADS if head in _ALWAYS or any(row.get(head) for row in rows)]
    states = ", ".join(f"{n} {state}" for state, n in Counter(map(_state, sight.found.ranks)).most_common())
    caption = f"Ranks {RankSet(row.rank for row in sight.found.ranks)}: {states}"
    styles = [_NUMBER if head in _NUMERIC else _CELL for head in heads]
    return _table(caption, heads, [[row.get(head, "") for head in heads] for row in rows], styles, has_caption=True)


def _state(row: RankFacts) -> str:
    return row.state if row.paused is None else "paused"


def draw_groups(found: StatusReport | None) -> str:
    """The groups, and the mesh as a grid of ranks."""
    if found is None:
        return ""
    grid = "" if found.facts.mesh is None else draw_mesh(Mesh(*found.facts.mesh))
    return _table("Groups", (), group_rows(found), (_CELL, _CELL, f"{_CELL};{_MUTED}")) + grid


def draw_mesh(mesh: Mesh) -> str:
    """Ranks in rows and columns: the last dimension is the columns, all before it are the rows."""
    *outer, last = mesh.names
    columns = mesh.sizes[-1]
    heads = ["", *(f"{last}={i}" for i in range(columns))]
    rows = []
    for first in range(0, math.prod(mesh.sizes), columns):
        label = " ".join(f"{name}={mesh.coordinate(first, name)}" for name in outer)
        rows.append([label, *map(str, range(first, first + columns))])
    return _table(f"Mesh {mesh}", heads, rows, [f"{_CELL};{_MUTED}", *[_NUMBER] * columns])


def _table(
    label: str, heads: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str], *, has_caption: bool = False
) -> str:
    """A table whose first column heads its rows; ``label`` names it for assistive technology."""
    caption = f'<caption style="text-align:left;{_MUTED};caption-side:top">{html.escape(label)}</caption>'
    top = "".join(f'<th scope="col" style="{s}">{html.escape(h)}</th>' for h, s in zip(heads, styles, strict=False))
    body = ""
    for first, *rest in rows:
        cells = "".join(f'<td style="{s}">{html.escape(c)}</td>' for c, s in zip(rest, styles[1:], strict=True))
        body += f'<tr><th scope="row" style="{styles[0]};font-weight:normal">{html.escape(first)}</th>{cells}</tr>'
    return (
        f'<table aria-label="{html.escape(label)}" style="{_FONT};border-collapse:collapse;margin:4px 0">'
        f"{caption if has_caption else ''}{f'<thead><tr>{top}</tr></thead>' if heads else ''}"
        f"<tbody>{body}</tbody></table>"
    )


# ---------------------------------------------------------------- messages


def draw_verdicts(sight: Sight) -> str:
    """Why runs make no progress; suggested actions are left out where they would have no effect."""
    verdicts = sight.found.verdicts if sight.found is not None else ()
    if sight.state in ("silent", "gone"):
        verdicts = tuple(structs.replace(verdict, remedies=()) for verdict in verdicts)
    texts = [html.escape(verdict.text(remedy_text.command)) for verdict in verdicts]
    return "".join(_box(f'<pre style="{_PRE}">{text}</pre>', _WARN, 'role="alert" ') for text in texts)


def draw_message(text: str, is_error: bool) -> str:
    """The result of the user's last action."""
    sign, style = ("✕ ", f"{_ERROR};{_WORDS}") if is_error else ("", _WORDS)
    return _box(sign + html.escape(text), style, 'role="status" ') if text else ""


def draw_warning(text: str) -> str:
    """A warning above the controls."""
    return _box(f"⚠ {html.escape(text)}", _WARN, 'role="note" ') if text else ""


def draw_heading(text: str) -> str:
    """A heading over a part of the panel."""
    return _box(html.escape(text), "font-weight:600;margin-top:6px", 'role="heading" aria-level="4" ')


def draw_snapshot(sight: Sight) -> dict[str, str]:
    """The cluster as it is now, as text and HTML, for where no widget can be shown."""
    if sight.found is None:
        return {"text/plain": sight.note, "text/html": draw_header(sight)}
    return status_bundle(sight.found, sight.looked, f"({_NO_WIDGETS})")


def _box(markup: str, style: str = "", attributes: str = "") -> str:
    return f'<div {attributes}style="{";".join(filter(None, (_FONT, style)))}">{markup}</div>'
