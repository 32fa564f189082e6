"""What a run looks like: one mime bundle of plain text, HTML and structure for everything that happened in it.

From top to bottom: what the user should know, what the ranks wrote, what went wrong (first cause first), and one line
that says how the run stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from jdist.core.outcome import OutputLine
from jdist.notebook.output.blocks import cut, html_body, plain_body, size
from jdist.notebook.output.failures import Failure, advice, failures, headline, in_short, located, naming, split_echoes
from jdist.notebook.output.run_json import structure
from jdist.notebook.output.run_json_schema import MIME
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.transcript import Block, Part
from jdist.notebook.text import ansi, markup
from jdist.notebook.text.tables import table, thumb_svg

__all__ = ["RunView", "error_message", "footer", "render", "table", "thumb_svg"]

LIMIT = 200_000
"""Bytes of each representation, pictures not counted."""
_LEAST_LIMIT = 20_000
_MOST_CAUSES = 8
Tracebacks = Mapping[tuple[int, ...], str]
"""Markup by the ranks that failed so."""
_OPEN_TRACEBACK = 30
"""The first cause's traceback stands open when it has at most so many lines."""


def render(view: RunView, limit: int = LIMIT) -> dict[str, Any]:
    """``{"text/plain", "text/html"}``, each of at most ``limit`` bytes (HTML: and pictures), and :data:`mime.MIME`, of
    half as much. ValueError below 20 kB.
    """
    if view.state == "done":
        view = structs.replace(view, blocks=in_rank_order(view.blocks))
    if limit < _LEAST_LIMIT:
        raise ValueError(f"a run cannot be shown in {limit} bytes; the least is {_LEAST_LIMIT}")
    tracebacks = _html_tracebacks(view, limit * 3 // 10)
    shown = _html(view, tracebacks, limit)
    structured = structure(view, shown, tracebacks, limit // 2)
    return {"text/plain": _plain(view, limit), "text/html": shown, MIME: structured}


def in_rank_order(blocks: Sequence[Block]) -> list[Block]:
    """Neighbouring blocks that share no rank, sorted by rank: which of them arrived first says nothing.

    Each rank's own order is kept.
    """
    ordered: list[Block] = []
    stretch: list[Block] = []
    seen: set[int] = set()
    for block in blocks:
        if seen & set(block.ranks):
            ordered += sorted(stretch, key=lambda b: min(b.ranks))
            stretch, seen = [], set()
        stretch.append(block)
        seen |= set(block.ranks)
    return ordered + sorted(stretch, key=lambda b: min(b.ranks))


def footer(view: RunView) -> str:
    """``run 12 · 4 ranks · 0.03 s · rank 2 failed: ValueError``, or how far the run is."""
    count = f"{len(view.ranks)} rank{'' if len(view.ranks) == 1 else 's'}"
    words = [f"run {view.run}"]
    if view.state == "waiting":
        words += ["waiting", count]
    elif view.state == "running":
        missing = [rank for rank in view.ranks if rank not in view.outcomes]
        words += [f"{len(view.ranks) - len(missing)} of {count} done", _whole(view.elapsed)]
        words += [f"running on {naming(missing)}"] if missing else []
    else:
        words += [count, _seconds(view.elapsed)]
    causes, _ = split_echoes(failures(view.outcomes, view.first_failed))
    words += [cut(in_short(cause, view.timeout), 150) for cause in causes[:3]]
    words += [f"{len(causes) - 3} more"] if len(causes) > 3 else []
    return " · ".join(words)


def error_message(view: RunView) -> str:
    """The text of the error raised in the notebook: a line for each distinct cause, the first one first, and advice."""
    causes, echoes = split_echoes(failures(view.outcomes, view.first_failed))
    if not causes:
        return ""
    lines = []
    for cause in causes[:_MOST_CAUSES]:
        line = headline(cause, located(cause.ranks, view.topology), view.timeout)
        lines.append(line + (f", at cell {cause.place}" if cause.place else ""))
    if len(causes) > _MOST_CAUSES:
        lines.append(_more(len(causes) - _MOST_CAUSES))
    if echoes:
        lines.append(_because(causes[0], echoes))
    lines.append(f"→ {advice(causes)}")
    return "\n".join(lines)


def _because(cause: Failure, echoes: Iterable[Failure]) -> str:
    ranks = [rank for echo in echoes for rank in echo.ranks]
    return f"{naming(ranks)} failed because of {naming(cause.ranks)}"


def _seconds(elapsed: float) -> str:
    return _whole(elapsed) if elapsed >= 10 else f"{elapsed:.1f} s" if elapsed >= 1 else f"{elapsed:.2f} s"


def _whole(elapsed: float) -> str:
    minutes, seconds = divmod(int(elapsed), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


# plain text


def _plain(view: RunView, limit: int) -> str:
    notices = [cut(_noted(ansi.strip(n)), 1000) for n in _few(view.notices)]
    head = [cut(ansi.strip(view.title), 200)] if view.title else []
    end = [cut(ansi.strip(view.told), limit // 20)] if view.verdict is not None else []
    end += _plain_failures(view, limit * 3 // 10)
    last = footer(view)
    room = limit - sum(size(part) + 1 for part in (*notices, *head, *end, last))
    body = _plain_output(view, room)
    return "\n".join(part for part in (*head, *notices, body, *end, last) if part)


def _noted(text: str) -> str:
    """The notice, marked as one where it does not begin with a mark of its own."""
    return f"note: {text}" if text[:1].isalnum() else text


def _few(notices: Sequence[str]) -> list[str]:
    """At most three notices, the newest, as they are bounded with the rest."""
    if len(notices) <= 3:
        return list(notices)
    return [f"{len(notices) - 2} earlier notices left out", *notices[-2:]]


def _plain_output(view: RunView, room: int) -> str:
    if view.lead is None:
        return plain_body(view.blocks, room)
    lines = [plain_body(_only(view.blocks, (view.lead,)), room - 500)]
    others = {rank for block in view.blocks for rank in block.ranks} - {view.lead}
    if others:
        lines.append(f"output of {naming(others)} not shown; run.outcomes has it, or run without --lead")
    return "\n".join(line for line in lines if line)


def _plain_failures(view: RunView, room: int) -> list[str]:
    causes, echoes = split_echoes(failures(view.outcomes, view.first_failed))
    told = []
    for cause in causes[:_MOST_CAUSES]:
        lines = [cut(headline(cause, located(cause.ranks, view.topology), view.timeout), room // 24)]
        lines += [f"  {cut(cause.place, 250)}"] if cause.place else []
        traceback = ansi.strip(_traceback(cause)) if cause.kind == "error" else ""
        lines += [cut(traceback, _share(room, len(causes)) // 4)] if traceback else []
        told.append("\n".join(lines))
    out = _fitting(told, room * 3 // 4)
    out += [_more(len(causes) - len(out))] if len(out) < len(causes) else []
    if echoes:
        out.append(f"{_because(causes[0], echoes)}: {cut(echoes[0].message, room // 24)}")
    return out


def _fitting(pieces: Iterable[str], room: int) -> list[str]:
    """The first pieces, as many as have room."""
    out = []
    for piece in pieces:
        room -= size(piece) + 1
        if room < 0:
            break
        out.append(piece)
    return out


def _more(count: int) -> str:
    return f"… {count} more cause{'' if count == 1 else 's'}; run.outcomes has them by rank"


def _share(room: int, causes: int) -> int:
    """What one of several causes may take of the room for all of them, half of which is left for the rest."""
    return room // 2 // min(max(causes, 1), _MOST_CAUSES)


def _traceback(failure: Failure) -> str:
    return "\n".join(failure.error.traceback) if failure.error is not None else ""


# HTML


def _html(view: RunView, tracebacks: Tracebacks, limit: int) -> str:
    title = f"<div><strong>{ansi.to_html(cut(view.title, 200))}</strong></div>" if view.title else ""
    head = title + "".join(markup.notice(cut(ansi.strip(n), limit // 200)) for n in _few(view.notices))
    verdict = markup.notice(cut(ansi.strip(view.told), limit // 100)) if view.verdict is not None else ""
    end = verdict + _html_failures(view, tracebacks, limit * 3 // 10) + markup.muted(footer(view))
    room = limit - size(head) - size(end) - 100
    return f"<div>{head}{_html_output(view, room)}{end}</div>"


def _html_output(view: RunView, room: int) -> str:
    if view.lead is None:
        return html_body(view.blocks, room)
    out = html_body(_only(view.blocks, (view.lead,)), room // 2)
    others = _distinct(view.blocks, view.lead)
    share = room // 2 // max(1, min(len(others), 16)) - 700
    for ranks in others[:15]:
        blocks = _only(view.blocks, ranks)
        lines = sum(isinstance(part.item, OutputLine) for block in blocks for part in block.parts)
        summary = f"{naming(ranks)} · {lines:,} line{'' if lines == 1 else 's'}"
        out += markup.details(summary, html_body(blocks, share))
    if len(others) > 15:
        rest = [rank for ranks in others[15:] for rank in ranks]
        out += markup.muted(f"output of {naming(rest)} not shown; run without --lead")
    return out


def _only(blocks: Iterable[Block], ranks: tuple[int, ...]) -> list[Block]:
    """The blocks as the first of ``ranks`` has them, standing for all of these ranks."""
    out = []
    for block in blocks:
        item = block.of(ranks[0])
        if item is not None:
            out.append(Block(ranks, (Part(ranks, item),), block.is_live))
    return out


def _distinct(blocks: Sequence[Block], lead: int) -> list[tuple[int, ...]]:
    """The ranks but ``lead``, those with the same output together."""
    written: dict[int, list[tuple[int, int]]] = {}
    for place, block in enumerate(blocks):
        for which, part in enumerate(block.parts):
            for rank in part.ranks:
                if rank != lead:
                    written.setdefault(rank, []).append((place, which))
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank, places in sorted(written.items()):
        alike.setdefault(tuple(places), []).append(rank)
    return [tuple(ranks) for ranks in alike.values()]


def _html_failures(view: RunView, tracebacks: Tracebacks, room: int) -> str:
    causes, echoes = split_echoes(failures(view.outcomes, view.first_failed))
    boxes: list[str] = []
    for cause in causes[:_MOST_CAUSES]:
        line = cut(headline(cause, located(cause.ranks, view.topology), view.timeout), room // 24)
        boxes.append(
            markup.error_box(line, cut(cause.place, 200), _folded(cause, tracebacks.get(cause.ranks, ""), not boxes))
        )
    told = _fitting(boxes, room * 3 // 4)
    out = "".join(told) + (markup.muted(_more(len(causes) - len(told))) if len(told) < len(causes) else "")
    if echoes:
        inside = _fitting((_html_echo(view, echo, room // 60) for echo in echoes[:4]), room // 4 - 500)
        if len(inside) < len(echoes):
            inside.append(markup.muted(f"… {len(echoes) - len(inside)} more; run.outcomes has them by rank"))
        out += markup.details(_because(causes[0], echoes), "".join(inside))
    return out


def _html_echo(view: RunView, echo: Failure, most: int) -> str:
    line = f"{located(echo.ranks, view.topology)}: {echo.message}" + (f", at {echo.place}" if echo.place else "")
    return markup.pre(ansi.to_html(cut(line, most)))


def _html_tracebacks(view: RunView, room: int) -> Tracebacks:
    causes, _ = split_echoes(failures(view.outcomes, view.first_failed))
    most = _share(room, len(causes)) // 2
    return {cause.ranks: _html_traceback(_traceback(cause), most) for cause in causes[:_MOST_CAUSES]}


def _html_traceback(text: str, room: int) -> str:
    if not text:
        return ""
    shown = ansi.to_html(text) if len(text) <= room else ""
    if not shown or size(shown) > room:
        shown = ansi.to_html(cut(ansi.strip(text), room // 6))
    return markup.pre(shown)


def _folded(failure: Failure, traceback: str, is_first: bool) -> str:
    if not traceback:
        return ""
    is_open = is_first and failure.kind == "error" and _traceback(failure).count("\n") < _OPEN_TRACEBACK
    return markup.details("traceback", traceback, is_open)
