"""Render a run: one mime bundle of plain text, HTML and structure.

From top to bottom: what the user should know, what the ranks wrote, what went wrong (first cause first), and one line
that says how the run stands.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from jdist.client.cluster import BaseCluster
from jdist.client.run import CellRun
from jdist.core.outcome import OutputLine
from jdist.notebook.output.body import html_body, indented, plain_body
from jdist.notebook.output.content import Contents, alike_but, in_rank_order, only
from jdist.notebook.output.run_json import MIME, run_json
from jdist.notebook.output.run_view import RunView, recorded_view
from jdist.notebook.text import markup
from jdist.notebook.text.folding import FoldedFrames
from jdist.notebook.text.markup import cut, naming, size
from jdist.notebook.text.remedy_text import arrows, command, typed

Bundle = Mapping[str, Any]  # Data by MIME type.

LIMIT = 200_000  # Bytes of each representation, pictures not counted.
_LEAST_LIMIT = 20_000
_MOST_CAUSES = 8


def render(view: RunView, limit: int = LIMIT) -> dict[str, Any]:
    """Text and HTML of at most ``limit`` bytes without pictures, and :data:`MIME` of half. Raises ValueError."""
    if limit < _LEAST_LIMIT:
        raise ValueError(f"a run cannot be shown in {limit} bytes; the least is {_LEAST_LIMIT}")
    if view.state == "done":
        view = structs.replace(view, blocks=in_rank_order(view.blocks))
    contents = Contents(view.blocks)
    causes, _ = view.failures
    room = limit * 3 // 10  # for all that went wrong; half of it is for the causes' tracebacks
    share = room // 2 // min(max(len(causes), 1), _MOST_CAUSES)
    shown_causes = causes[:_MOST_CAUSES]
    tracebacks = [_html_traceback(cause.traceback(is_full=view.is_full), share // 2) for cause in shown_causes]
    shown = _html(view, contents, tracebacks, limit, room)
    structure = run_json(view, contents, shown, tracebacks, limit // 2)
    return {"text/plain": _plain(view, contents, limit, room, share // 4), "text/html": shown, MIME: structure}


# ---------------------------------------------------------------- plain text


def _plain(view: RunView, contents: Contents, limit: int, room: int, longest_traceback: int) -> str:
    notices = view.newest_notices(limit // 200)
    head = [f"note: {notice}" if notice[:1].isalnum() else notice for notice in notices]  # others have their own mark
    wrong = [cut(view.verdict_text, limit // 20), *_plain_failures(view, room, longest_traceback)]
    if view.follows_failures:
        wrong = [*wrong[1:], wrong[0]]
    end = [view.paused_text, *wrong, view.footer]
    room = limit - sum(size(part) + 1 for part in (*head, *end))
    if view.lead is None:
        body = [plain_body(view.blocks, contents, room)]
    else:
        body = [plain_body(only(view.blocks, (view.lead,)), contents, room - 500)]
        if others := {rank for block in view.blocks for rank in block.ranks} - {view.lead}:
            body.append(f"output of {naming(others)} not shown; run.outcomes has it, or run without --lead")
    return "\n".join(filter(None, (*head, *body, *end)))


def _plain_failures(view: RunView, room: int, longest_traceback: int) -> list[str]:
    causes, echoes = view.failures
    texts = []
    opening = f" ({typed('output')} {view.run} --full shows them)"  # once
    for cause in causes[:_MOST_CAUSES]:
        pieces = cause.traceback(is_full=view.is_full) if cause.kind == "error" else []
        traceback = indented(" ", cut(_plain_traceback(pieces, opening), longest_traceback))
        opening = "" if any(isinstance(piece, FoldedFrames) for piece in pieces) else opening
        place = f"  {cause.place}" if cause.place else ""
        actions = (f"  {cut(line, 250)}" for line in arrows(cause.remedies))
        headline = indented("   ", cut(cause.headline, room // 24))  # a message's further lines are not jdist's own
        lines = (headline, place, *actions, traceback and f"  {traceback}")
        texts.append("\n".join(filter(None, lines)))
    shown = _fitting(texts, room * 3 // 4)
    shown += [_more(len(causes) - len(shown), "cause")] if len(shown) < len(causes) else []
    return shown + ([f"{view.echo_summary}: {cut(echoes[0].message, room // 24)}"] if echoes else [])


def _fitting(pieces: Iterable[str], room: int) -> list[str]:
    """The first pieces, as many as have room."""
    fitting = []
    for piece in pieces:
        room -= size(piece) + 1
        if room < 0:
            break
        fitting.append(piece)
    return fitting


def _more(count: int, what: str) -> str:
    return f"… {count} more {what}{'' if count == 1 else 's'}; run.outcomes has them by rank"


# ---------------------------------------------------------------- HTML


def _html(view: RunView, contents: Contents, tracebacks: Sequence[str], limit: int, room: int) -> str:
    head = "".join(map(markup.notice, view.newest_notices(limit // 200)))
    verdict = markup.notice(cut(view.verdict_text, limit // 100)) if view.verdict_text else ""
    paused = markup.notice(view.paused_text) if view.paused_text else ""
    failures = _html_failures(view, tracebacks, room)
    wrong = failures + verdict if view.follows_failures else verdict + failures
    end = paused + wrong + markup.muted(view.footer)
    return f"<div>{head}{_html_output(view, contents, limit - size(head) - size(end) - 100)}{end}</div>"


def _html_output(view: RunView, contents: Contents, room: int) -> str:
    if view.lead is None:
        return html_body(view.blocks, contents, room)
    out = html_body(only(view.blocks, (view.lead,)), contents, room // 2)
    others = alike_but(view.blocks, view.lead)
    share = room // 2 // max(1, min(len(others), 16)) - 700
    for ranks in others[:15]:
        blocks = only(view.blocks, ranks)
        lines = sum(isinstance(part.item, OutputLine) for block in blocks for part in block.parts)
        summary = f"{naming(ranks)} · {lines:,} line{'' if lines == 1 else 's'}"
        out += markup.details(summary, html_body(blocks, contents, share))
    if rest := [rank for ranks in others[15:] for rank in ranks]:
        out += markup.muted(f"output of {naming(rest)} not shown; run without --lead")
    return out


def _html_failures(view: RunView, tracebacks: Sequence[str], room: int) -> str:
    causes, echoes = view.failures
    boxes = []
    for i, (cause, traceback) in enumerate(zip(causes, tracebacks, strict=False)):
        is_open = i == 0 and cause.stands_open(is_full=view.is_full)
        more = markup.details("traceback", markup.marked(traceback), is_open) if traceback else ""
        actions = "".join(markup.suggested(cut(command(each), 120), cut(each.effect, 120)) for each in cause.remedies)
        boxes.append(markup.error_box(cut(cause.headline, room // 24), cause.place, actions + more))
    shown = _fitting(boxes, room * 3 // 4)
    shown += [markup.muted(_more(len(causes) - len(shown), "cause"))] if len(shown) < len(causes) else []
    if echoes:
        lines = [echo.headline + (f", at {echo.place}" if echo.place else "") for echo in echoes[:4]]
        inside = _fitting((markup.pre(markup.to_html(cut(line, room // 60))) for line in lines), room // 4 - 500)
        inside += [markup.muted(_more(len(echoes) - len(inside), "echo"))] if len(inside) < len(echoes) else []
        shown.append(markup.details(view.echo_summary, "".join(inside)))
    return "".join(shown)


def _html_traceback(pieces: Sequence[str | FoldedFrames], room: int) -> str:
    is_long = sum(len(piece.text if isinstance(piece, FoldedFrames) else piece) for piece in pieces) > room
    shown = "" if is_long else "".join(map(_html_piece, pieces))
    if is_long or size(shown) > room:
        return markup.pre(markup.to_html(cut(_plain_traceback(pieces), room // 6)))
    return shown


def _html_piece(piece: str | FoldedFrames) -> str:
    if isinstance(piece, str):
        return markup.pre(markup.to_html(piece))
    return markup.details(piece.summary, markup.pre(markup.to_html(piece.text)))


def _plain_traceback(pieces: Iterable[str | FoldedFrames], opening: str = "") -> str:
    """``opening`` says after the first line that stands for frames how they are shown."""
    texts = []
    for piece in pieces:
        if isinstance(piece, FoldedFrames):
            texts.append(f"{piece.summary}{opening}\n")
            opening = ""
        else:
            texts.append(markup.strip(piece))
    return "\n".join(texts)


def recorded_bundle(cluster: BaseCluster, run: CellRun, *, is_full: bool = False) -> Bundle:
    """What a notebook's cell would show of the run; with ``is_full``, whole tracebacks."""
    return render(recorded_view(cluster, run, is_full=is_full))
