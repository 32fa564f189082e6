"""The report of a profile: its headline, finding and notes, and its tables, as text. Pure."""

from collections.abc import Mapping

from msgspec import Struct

from jdist.client.profile.operators import RankOperators
from jdist.client.profile.shares import IN_PYTHON, UNRECORDED, Filled, Place, Shares, places, shares
from jdist.client.trace.report import TraceReport
from jdist.core.quantities import format_count, format_interval
from jdist.core.ranks import describe_ranks, ranks_by
from jdist.core.table import Table

_HEADS = ("rank", "node", "compute", "collectives", "waiting", "data loading", IN_PYTHON, UNRECORDED, "steps")
_PLACE_HEADS = ("collective", "times", "waited", "slowest", "meanwhile, the slowest rank was in")
_MOST_PLACES = 8
_MOST_INSTEAD = 3
_WORTH_SAYING = 0.01  # The finding ignores waiting of less than this fraction of the ranks' time.
_SHORTEST = 1e-6  # Seconds; shorter operators are reported with this duration.
_SHORT = 1e-3  # Seconds that may go unrecorded without a note.


class ProfileReport(Struct, frozen=True):
    """What is known of a profiled run."""

    trace: TraceReport
    ranks: dict[int, RankOperators]
    filled: Filled
    absent: dict[int, str]  # Why a rank has no profile.
    shares: dict[int, Shares]
    places: list[Place]

    @classmethod
    def of(
        cls, trace: TraceReport, ranks: Mapping[int, RankOperators], filled: Filled, absent: Mapping[int, str]
    ) -> "ProfileReport":
        """Computes the tables."""
        rows = [row for row in trace.timeline.rows if row.rank in ranks]
        divided = {row.rank: shares(row, ranks[row.rank], filled) for row in rows}
        return cls(trace, dict(ranks), filled, dict(absent), divided, places(trace.timeline, ranks, filled))

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
        """The rank that the others waited for most, where, and what it was doing in the meantime."""
        total = sum(s.waiting for s in self.shares.values())
        if not self.places or total <= _WORTH_SAYING * self.trace.timeline.span * max(1, len(self.shares)):
            return "no rank waited long for another"
        worst = self.places[0]
        what = _instead(worst)
        return (
            f"ranks waited {format_interval(worst.caused)} for rank {worst.slowest} in {self._name(worst)}; "
            f"meanwhile it was in {what}"
        )

    @property
    def notes(self) -> list[str]:
        """What the profile does not include."""
        notes = []
        for reason, ranks in ranks_by((r, o.profile.reason) for r, o in self.ranks.items() if o.profile.reason).items():
            notes.append(f"{describe_ranks(ranks)}: {reason}")
        for reason, ranks in ranks_by(sorted(self.absent.items())).items():
            notes.append(f"{describe_ranks(ranks)}: {reason}")
        short = {r: o.profile for r, o in self.ranks.items() if o.profile.left_out}
        if short:
            count, longest = sum(p.left_out for p in short.values()), max(p.longest_left_out for p in short.values())
            within = format_interval(max(longest / 1e9, _SHORTEST))
            notes.append(f"{count:,} operators of at most {within} each were omitted; the table includes their time")
        unrecorded = {r: s.unrecorded for r, s in self.shares.items() if s.unrecorded > _SHORT}
        if unrecorded:
            most = max(unrecorded.values())
            which = describe_ranks(unrecorded)
            windows = max(len(self.ranks[r].profile.windows) for r in unrecorded)
            kept = f"in {format_count(windows, 'window')}" if windows else "at no time"
            notes.append(
                f"{which}: operators were recorded {kept}, with up to {format_interval(most)} not recorded; "
                "collectives were recorded throughout"
            )
        return [*notes, *self.trace.notes]

    def _name(self, place: Place) -> str:
        line = f" at {place.call.place}" if place.call.place else ""
        return f"{place.call.op} of {self.trace.label(place.call.group)}{line}"

    @property
    def table(self) -> Table:
        """A row for each rank, without columns that are empty on every rank."""
        rows = []
        for rank, s in sorted(self.shares.items()):
            ends = self.ranks[rank].steps
            steps = ""
            if len(ends) > 1:
                steps = f"{len(ends):,} of {format_interval(float(ends[-1] - ends[0]) / (len(ends) - 1))}"
            times = (s.computing, s.collectives, s.waiting, s.loading, s.other)
            unrecorded = format_interval(s.unrecorded) if s.unrecorded > _SHORT else ""
            rows.append((rank, self.trace.places.get(rank), *map(format_interval, times), unrecorded, steps))
        return Table.of(_HEADS, rows).without_empty(UNRECORDED, "steps")

    @property
    def place_table(self) -> Table:
        """A row for each of the places where ranks waited longest."""
        rows = []
        for place in self.places[:_MOST_PLACES]:
            times = place.last.get(place.slowest, 0)
            slowest = f"rank {place.slowest}, {times:,} of {place.calls:,} times"
            waited = format_interval(place.waited)
            rows.append((self._name(place), f"{place.calls:,}", waited, slowest, _instead(place)))
        return Table.of(_PLACE_HEADS, rows)

    def text(self) -> str:
        """The whole report, for terminals."""
        lines = [self.headline, self.finding, "", self.table.text()]
        if self.places:
            lines += ["", self.place_table.text()]
        return "\n".join([*lines, *self.notes])


def _instead(place: Place) -> str:
    """What the slowest rank was doing in the meantime: ``aten::mm 2.5 s, data loading 0.8 s (0.3 s not recorded)``."""
    known = [(name, seconds) for name, seconds in place.instead if name != UNRECORDED]
    parts = ", ".join(f"{name} {format_interval(seconds)}" for name, seconds in known[:_MOST_INSTEAD])
    unknown = dict(place.instead).get(UNRECORDED, 0.0)
    if unknown <= _WORTH_SAYING * place.meanwhile:
        return parts
    return f"{parts} ({format_interval(unknown)} not recorded)" if parts else f"{UNRECORDED} {format_interval(unknown)}"
