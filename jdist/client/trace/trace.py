"""Trace: a run's calls by rank for users: the waiting that they caused and suffered, their picture and their file."""

import html
import os
from pathlib import Path

from jdist.client.trace import chrome, svg
from jdist.client.trace.report import HEADS, NUMERIC, TraceReport
from jdist.core.errors import UsageError
from jdist.core.observation import Call

_CELL = "padding:2px 12px 2px 0;vertical-align:top;text-align:"


class Trace:
    """The calls of torch.distributed that ranks made in a run; notebooks draw it.

    A rank waits in a call until the last rank that the operation needs has entered. Each moment of that is charged in
    equal shares to the ranks that had not come yet, so ``caused`` and ``suffered`` have the same sum.
    """

    def __init__(self, report: TraceReport):
        self.report = report

    @property
    def run(self) -> int:
        """The run's number."""
        return self.report.timeline.run

    @property
    def calls(self) -> dict[int, tuple[Call, ...]]:
        """``{rank: calls}``, oldest first, with times by the rank's own clock."""
        return {row.rank: tuple(bar.call for bar in row.bars) for row in self.report.timeline.rows}

    @property
    def suffered(self) -> dict[int, float]:
        """``{rank: seconds}`` that the rank waited for others."""
        return self.report.timeline.suffered

    @property
    def caused(self) -> dict[int, float]:
        """``{rank: seconds}`` that others waited for the rank, added up over them."""
        return dict(self.report.timeline.caused)

    @property
    def absent(self) -> dict[int, str]:
        """``{rank: why}`` of the ranks that did not answer."""
        return dict(self.report.absent)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a Chrome trace (JSON), which ui.perfetto.dev opens. Raises UsageError where that cannot be written."""
        target = Path(path).expanduser()
        try:
            target.write_bytes(chrome.chrome(self.report))
        except OSError as e:
            raise UsageError(f"the trace cannot be written to {target}: {e.strerror or e}; name another file") from None
        return target

    def __repr__(self) -> str:
        return self.report.text()

    def _repr_svg_(self) -> str:
        # shown as a file it has no surroundings whose colour it could take: this grey is readable on black and white
        return svg.svg(self.report, "#7f7f7f")

    def _repr_html_(self) -> str:
        r = self.report
        picture = svg.svg(r) if r.timeline.rows else ""
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in r.notes)
        return (
            f"<div><strong>{html.escape(r.headline)}</strong></div><div>{html.escape(r.finding)}</div>"
            f'<div style="overflow-x:auto;margin:6px 0">{picture}</div>{_table(r)}'
            f'<div style="opacity:.75">{notes}</div>'
        )


def _table(report: TraceReport) -> str:
    aligned = [f'style="{_CELL}{"right" if head in NUMERIC else "left"}"' for head in HEADS]
    top = "".join(f"<th {a}>{html.escape(h)}</th>" for h, a in zip(HEADS, aligned, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td {a}>{html.escape(c)}</td>" for c, a in zip(row, aligned, strict=True)) + "</tr>"
        for row in report.table()
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>"
