"""Text: a timeline in characters, for terminals and wherever pictures are not shown. Pure."""

from collections.abc import Sequence

from jdist.client.trace.report import HEADS, NUMERIC, TraceReport
from jdist.client.trace.timeline import Row
from jdist.core.quantities import format_interval

_COLUMNS = 64
_WORK, _WAIT, _CELL = "█", "░", "─"


def text(report: TraceReport) -> str:
    """Headline, a line of characters for each rank, and the table."""
    t = report.timeline
    lines = [report.headline, report.finding]
    if t.span > 0 and t.rows:
        wide = max(len(str(row.rank)) for row in t.rows)
        lines += ["", *(f"{row.rank:>{wide}} {_strip(row, t.span)}" for row in t.rows)]
        end = format_interval(t.span)
        lines.append(f"{'':{wide}} 0{end:>{_COLUMNS - 1}}")
        lines.append(
            f"{'':{wide}} {_WORK} in a call   {_WAIT} waiting there for another rank   {_CELL} elsewhere in the cell"
        )
    lines += ["", _grid(HEADS, report.table()), *report.notes]
    return "\n".join(lines)


def _strip(row: Row, span: float) -> str:
    """One character for each stretch of time, for most of what the rank did in it; a wait wins over equal work."""
    step = span / _COLUMNS
    work, wait = [0.0] * _COLUMNS, [0.0] * _COLUMNS
    for bar in row.bars:
        _spread(wait, bar.began, bar.work, step)
        _spread(work, bar.work, bar.ended, step)
    out = []
    for i in range(_COLUMNS):
        busy = min(work[i] + wait[i], step)
        inside = row.began < (i + 1) * step and row.ended > i * step
        if busy >= step / 2:
            out.append(_WAIT if wait[i] >= work[i] else _WORK)
        else:
            out.append(_CELL if inside else " ")
    return "".join(out)


def _spread(into: list[float], began: float, ended: float, step: float) -> None:
    first, last = max(0, int(began / step)), min(len(into) - 1, int(ended / step))
    for i in range(first, last + 1):
        into[i] += max(0.0, min(ended, (i + 1) * step) - max(began, i * step))


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [list(heads), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [c.rjust(w) if h in NUMERIC else c.ljust(w) for c, w, h in zip(row, widths, heads, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
