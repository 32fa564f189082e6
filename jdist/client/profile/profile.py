"""Profile: collects what every rank recorded of a run, and presents it to users."""

import gzip
import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jdist.client.attachment import Attachment
from jdist.client.profile.chrome import chrome
from jdist.client.profile.columns import columns
from jdist.client.profile.operators import RankOperators, decode, with_ends
from jdist.client.profile.report import ProfileReport
from jdist.client.profile.shares import Place, Shares
from jdist.client.run import CellRun
from jdist.client.trace import svg
from jdist.client.trace.columns import MIME
from jdist.client.trace.trace import Trace, collect_trace
from jdist.core.errors import UsageError
from jdist.core.messages.observation import RankTrace
from jdist.core.ranks import describe_ranks, ranks_by

_MOST_CALLS = 20_000  # A notebook keeps the timeline only if there are no more calls than this.


class Profile:
    """Where the time of a profiled run went on each rank; notebooks draw it."""

    def __init__(self, report: ProfileReport, run: CellRun | None = None, cluster: str = "") -> None:
        self.report = report
        self.run = run
        """The run, if this client submitted it; ``run.check()`` raises its error."""
        self._cluster = cluster

    @property
    def table(self) -> dict[int, Shares]:
        """``{rank: Shares}``: seconds in compute, collectives, waiting for others, data loading, and other."""
        return dict(self.report.shares)

    @property
    def slowest(self) -> tuple[Place, ...]:
        """Where ranks waited for others, which rank they waited for most, and what it was doing; longest first."""
        return tuple(self.report.places)

    @property
    def trace(self) -> Trace:
        """The calls of torch.distributed in the run."""
        return Trace(self.report.trace)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a Chrome trace of all ranks, for ui.perfetto.dev; it is compressed if the name ends with .gz.

        Raises UsageError if the file cannot be written.
        """
        target = Path(path).expanduser()
        opened: Any = gzip.open if target.suffix == ".gz" else open
        try:
            with opened(target, "wt", encoding="utf-8") as file:
                file.writelines(chrome(self.report))
        except OSError as e:
            why = e.strerror or e
            raise UsageError(f"the profile cannot be written to {target}: {why}; name another file") from None
        return target

    def __repr__(self) -> str:
        return self.report.text()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        del include, exclude
        shown: dict[str, Any] = {"text/plain": repr(self), "text/html": self._html()}
        if sum(len(row.bars) for row in self.report.trace.timeline.rows) <= _MOST_CALLS:
            shown[MIME] = columns(self.report, self._cluster)
        return shown

    def _html(self) -> str:
        r = self.report
        picture = svg.svg(r.trace) if r.trace.timeline.rows else ""
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in r.notes)
        return (
            f"<div><strong>{html.escape(r.headline)}</strong></div><div>{html.escape(r.finding)}</div>"
            f"{r.table.html()}{r.place_table.html() if r.places else ''}"
            f'<div style="overflow-x:auto;margin:6px 0">{picture}</div>'
            f'<div style="opacity:.75">{notes}</div>'
        )


async def collect_profile(attachment: Attachment, which: CellRun | int) -> Profile:
    """The profile of a run (0: the last one). Raises UsageError if no rank has one."""
    run, number = (which, which.number) if isinstance(which, CellRun) else (None, which)
    facts = attachment.facts
    ranks = tuple(run.ranks) if run is not None else tuple(range(facts.topology.world_size))
    found, absent = await attachment.carrier.read_profiles(number, ranks)
    profiles = {r: decode(bytes(data)) for r, data in found.items()}
    newest = number or max((p.run for p in profiles.values()), default=0)
    profiles = {r: p for r, p in profiles.items() if p.run == newest}
    if not profiles:
        raise UsageError(_nothing(number, absent))
    filled: dict[int, frozenset[int]] = {}

    def revise(rank: int, trace: RankTrace) -> RankTrace:
        if rank not in profiles or trace.run != newest:
            return trace
        trace, filled[rank] = with_ends(trace, profiles[rank])
        return trace

    report = (await collect_trace(attachment.link, facts, newest, revise)).report
    shifts = report.timeline.shifts
    operators = {r: RankOperators(r, p, shifts[r]) for r, p in sorted(profiles.items()) if r in shifts}
    absent = {r: why for r, why in absent.items() if run is not None or r in shifts}
    return Profile(ProfileReport.of(report, operators, filled, absent), run, facts.name)


def _nothing(run: int, absent: Mapping[int, str]) -> str:
    reasons = ranks_by(sorted(absent.items()))
    texts = "; ".join(f"{describe_ranks(ranks)}: {why}" for why, ranks in list(reasons.items())[:3])
    what = f"run {run}" if run else "any run"
    return f"there is no profile of {what}" + (f": {texts}" if texts else "")
