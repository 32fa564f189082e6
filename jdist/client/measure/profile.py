"""Profile: what torch.profiler recorded of a run on every rank, with who waited for whom, as users see it."""

import gzip
import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from jdist.client.attachment import Attachment
from jdist.client.measure import svg
from jdist.client.measure.chrome import chrome
from jdist.client.measure.columns import MIME, columns, operator_columns
from jdist.client.measure.report import TraceReport, line_of
from jdist.client.measure.shares import Filled, Place, RankOperators, Shares, places, shares, with_ends
from jdist.client.measure.trace import Trace, collect_trace
from jdist.client.run import CellRun
from jdist.client.variables.carrier import Carrier
from jdist.core.errors import UsageError
from jdist.core.messages.observation import RankTrace
from jdist.core.profile import RankProfile
from jdist.core.quantities import format_count, format_interval
from jdist.core.ranks import describe_ranks, ranks_by
from jdist.core.table import Table

_HEADS = ("rank", "node", "communication", "collectives", "waiting", "elsewhere", "steps")
_PLACE_HEADS = ("collective", "times", "waited", "slowest")
_MOST_PLACES = 8
_WORTH_SAYING = 0.01  # The finding ignores waiting of less than this fraction of the ranks' time.
_SHORTEST = 1e-6  # Seconds; shorter operators are reported with this duration.
_SHORT = 1e-3  # Seconds that may go unrecorded without a note.
_MOST_CALLS = 20_000  # A notebook keeps the timeline only if there are no more calls than this.


class ProfileReport(Struct, frozen=True):
    """What is known of a profiled run."""

    trace: TraceReport
    ranks: dict[int, RankOperators]
    absent: dict[int, str]  # Why a rank has no profile.
    shares: dict[int, Shares]
    places: list[Place]

    @classmethod
    def of(
        cls, trace: TraceReport, ranks: Mapping[int, RankOperators], filled: Filled, absent: Mapping[int, str]
    ) -> "ProfileReport":
        """Compute the shares, and the places where ranks waited."""
        rows = [row for row in trace.timeline.rows if row.rank in ranks]
        divided = {row.rank: shares(row, ranks[row.rank], filled) for row in rows}
        return cls(trace, dict(ranks), dict(absent), divided, places(trace.timeline, ranks, filled))

    @property
    def headline(self) -> str:
        """``profile of run 3 · 4 ranks · 1.2 s · 12,345 operators``."""
        t = self.trace.timeline
        operators = sum(len(o.starts) for o in self.ranks.values())
        missing = f", {describe_ranks(self.absent)} missing" if self.absent else ""
        going = " so far" if any(row.is_running for row in t.rows) else ""
        ranks = format_count(len(self.ranks), "rank") + missing
        return f"profile of run {t.run} · {ranks} · {format_interval(t.span)}{going} · {operators:,} operators"

    @property
    def finding(self) -> str:
        """The rank that the others waited for most, and where."""
        total = sum(s.waiting for s in self.shares.values())
        if not self.places or total <= _WORTH_SAYING * self.trace.timeline.span * max(1, len(self.shares)):
            return "no rank waited long for another"
        worst = self.places[0]
        return f"ranks waited {format_interval(worst.caused)} for rank {worst.slowest} in {self._name(worst)}"

    @property
    def notes(self) -> list[str]:
        """What the profile does not include."""
        reasons = [(r, o.profile.reason) for r, o in self.ranks.items() if o.profile.reason]
        by_reason = [*ranks_by(reasons).items(), *ranks_by(sorted(self.absent.items())).items()]
        notes = [f"{describe_ranks(ranks)}: {reason}" for reason, ranks in by_reason]
        short = [o.profile for o in self.ranks.values() if o.profile.left_out]
        if short:
            count, longest = sum(p.left_out for p in short), max(p.longest_left_out for p in short)
            within = format_interval(max(longest / 1e9, _SHORTEST))
            notes.append(f"{count:,} operators of at most {within} each were omitted from the timeline")
        unrecorded = {r: s.unrecorded for r, s in self.shares.items() if s.unrecorded > _SHORT}
        if unrecorded:
            most = format_interval(max(unrecorded.values()))
            windows = max(len(self.ranks[r].profile.windows) for r in unrecorded)
            kept = f"in {format_count(windows, 'window')}" if windows else "at no time"
            notes.append(
                f"{describe_ranks(unrecorded)}: operators were recorded {kept}, with up to {most} not recorded; "
                "collectives were recorded throughout"
            )
        return [*notes, *self.trace.notes]

    def _name(self, place: Place) -> str:
        return f"{place.call.op} of {self.trace.label(place.call.group)}{line_of(place.call)}"

    @property
    def table(self) -> Table:
        """A row for each rank."""
        rows = []
        for rank, s in sorted(self.shares.items()):
            ends = self.ranks[rank].steps
            steps = ""
            if len(ends) > 1:
                steps = f"{len(ends):,} of {format_interval(float(ends[-1] - ends[0]) / (len(ends) - 1))}"
            times = map(format_interval, (s.collectives, s.waiting, s.elsewhere))
            rows.append((rank, self.trace.places.get(rank), f"{s.communication:.0%}", *times, steps))
        return Table.of(_HEADS, rows).without_empty("steps")

    @property
    def place_table(self) -> Table:
        """A row for each of the places where ranks waited longest."""
        rows = []
        for place in self.places[:_MOST_PLACES]:
            slowest = f"rank {place.slowest}, {place.last.get(place.slowest, 0):,} of {place.calls:,} times"
            rows.append((self._name(place), f"{place.calls:,}", format_interval(place.waited), slowest))
        return Table.of(_PLACE_HEADS, rows)

    @property
    def operators(self) -> tuple[str, str]:
        """A heading and torch's table of operators, of the rank that others waited for most, if it has one."""
        by_rank = {rank: o.profile for rank, o in self.ranks.items() if o.profile.table}
        if not by_rank:
            return "", ""
        rank = next((place.slowest for place in self.places if place.slowest in by_rank), min(by_rank))
        found = by_rank[rank]
        windows = len(found.windows)
        part = f" in {found.tabulated} of {windows} windows" if found.tabulated < windows else ""
        return f"operators of rank {rank}{part}, by torch.profiler", found.table

    def text(self) -> str:
        """The whole report, for terminals."""
        tables = [self.table, *[self.place_table] * bool(self.places)]
        parts = [f"{self.headline}\n{self.finding}", *(table.text() for table in tables)]
        parts += ["\n".join(self.operators)] * any(self.operators)
        return "\n\n".join(parts) + "".join(f"\n{note}" for note in self.notes)


class Profile:
    """Where ranks of a profiled run waited for each other, and what they did; notebooks draw it."""

    def __init__(self, report: ProfileReport, run: CellRun | None = None, cluster: str = "") -> None:
        self.report = report
        self.run = run
        """The run, if this client submitted it; ``run.check()`` raises its error."""
        self._cluster = cluster

    @property
    def table(self) -> dict[int, Shares]:
        """``{rank: Shares}``: seconds in collectives, waiting for others in them, and elsewhere."""
        return dict(self.report.shares)

    @property
    def slowest(self) -> tuple[Place, ...]:
        """Where ranks waited for others, and which rank they waited for most; longest first."""
        return tuple(self.report.places)

    @property
    def operators(self) -> dict[int, str]:
        """``{rank: torch.profiler's table}`` of the operators that took the rank most time."""
        return {rank: o.profile.table for rank, o in self.report.ranks.items()}

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
                file.writelines(chrome(self.report.trace, self.report.ranks, self.report.notes))
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
            shown[MIME] = self._columns()
        return shown

    def _columns(self) -> dict[str, Any]:
        r = self.report
        found = columns(r.trace, self._cluster) | {"headline": r.headline, "finding": r.finding, "notes": r.notes}
        ranks = [r.ranks.get(row.rank) for row in r.trace.timeline.rows]
        return found | {"operators": operator_columns(ranks, found["tick"])}

    def _html(self) -> str:
        r = self.report
        picture = svg.svg(r.trace) if r.trace.timeline.rows else ""
        heading, operators = map(html.escape, r.operators)
        below = f"<div>{heading}</div><pre>{operators}</pre>" if operators else ""
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in r.notes)
        return (
            f"<div><strong>{html.escape(r.headline)}</strong></div><div>{html.escape(r.finding)}</div>"
            f"{r.table.html()}{r.place_table.html() if r.places else ''}"
            f'<div style="overflow-x:auto;margin:6px 0">{picture}{below}</div>'
            f'<div style="opacity:.75">{notes}</div>'
        )


async def collect_profile(attachment: Attachment, carrier: Carrier, which: CellRun | int) -> Profile:
    """The profile of a run (0: the last one). Raises UsageError if no rank has one."""
    run, number = (which, which.number) if isinstance(which, CellRun) else (None, which)
    facts = attachment.facts
    ranks = tuple(run.ranks) if run is not None else tuple(range(facts.topology.world_size))
    found, absent = await carrier.read_profiles(number, ranks)
    profiles = {r: msgspec.msgpack.decode(bytes(data), type=RankProfile) for r, data in found.items()}
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
