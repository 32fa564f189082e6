"""Report: a run's timeline in words: its headline, its finding and notes, its table by rank, and all as text. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import Struct

from jdist.client.measure.timeline import Bar, Row, Timeline
from jdist.core.messages.observation import Call
from jdist.core.quantities import format_count, format_interval
from jdist.core.ranks import describe_ranks, ranks_by
from jdist.core.table import Table

_HEADS = ("rank", "node", "calls", "in calls", "waited", "made others wait", "longest wait")
_WORTH_SAYING = 0.01  # Waiting of less than this part of the ranks' time is not in the headline.
_WORTH_NAMING = 0.1  # Ranks charged with less than this part of a wait are not named.
_LEAST_ERROR = 1e-4  # Clocks that agree within this many seconds need no note.
_COLUMNS = 64  # Characters for a rank's time in a text.
_WORK, _WAIT, _CELL = "█", "░", "─"


class TraceReport(Struct, frozen=True):
    """A timeline, and the names that go with it."""

    timeline: Timeline
    places: dict[int, str]  # `"0 host-a"`, the node of each rank of the cluster.
    labels: dict[str, str]  # The names that people use for groups, by torch's names.
    absent: dict[int, str]  # Why a rank is not drawn.
    elsewhere: tuple[int, ...] = ()  # Ranks that took no part in the run.

    def label(self, group: str) -> str:
        """The name that people use for the group."""
        return self.labels.get(group) or ("world" if group == "0" else f"group {group}")

    @property
    def groups(self) -> tuple[str, ...]:
        """Torch's names of the groups that were used, most used first."""
        counts = Counter(bar.call.group for bar in self.timeline.bars)
        return tuple(sorted(counts, key=lambda g: (-counts[g], g)))

    @property
    def headline(self) -> str:
        """``run 3 · 4 ranks · 1.2 s · 12 calls``, and the ranks that are missing."""
        t = self.timeline
        calls = sum(len(row.bars) for row in t.rows)
        ranks = format_count(len(t.rows), "rank")
        if self.elsewhere:
            ranks += f", {describe_ranks(self.elsewhere)} took no part"
        if self.absent:
            ranks += f", {describe_ranks(self.absent)} missing"
        going = " so far" if any(row.is_running for row in t.rows) else ""
        return f"run {t.run} · {ranks} · {format_interval(t.span)}{going} · {calls:,} call{'s' if calls != 1 else ''}"

    @property
    def finding(self) -> str:
        """The rank that made the others wait most, and where."""
        t = self.timeline
        if not any(row.bars for row in t.rows):
            return "no rank called torch.distributed in this run"
        total = sum(t.suffered.values())
        if total <= _WORTH_SAYING * t.span * len(t.rows):
            return "no rank waited long for another"
        worst = max(t.caused, key=lambda r: t.caused[r])
        caused = f"{format_interval(t.caused[worst])} of {format_interval(total)}"
        return f"rank {worst} made others wait {caused} in all{self._most_of(worst)}"

    def _most_of(self, rank: int) -> str:
        """The calls with most of the waiting that the rank caused, or a single one that stands out."""
        by_place: dict[tuple[str, str, int | None], Counter[int]] = defaultdict(Counter)
        example: dict[int, Call] = {}
        for bar in self.timeline.bars:
            if charged := dict(bar.charged).get(rank, 0.0):
                by_place[bar.call.op, bar.call.group, bar.call.line][bar.meeting] += charged  # type: ignore[assignment]
                example[bar.meeting] = bar.call
        if not by_place:
            return ""
        place = max(by_place.values(), key=lambda found: sum(found.values()))
        worst, most = place.most_common(1)[0]
        call, total = example[worst], sum(place.values())
        if len(place) == 1 or most > total / 2:
            return f", {format_interval(most)} of it in {self.name(call)}"
        calls = f"{len(place):,} calls of {call.op} in {self.label(call.group)}{line_of(call)}"
        return f", {format_interval(total)} of it in {calls}"

    @property
    def notes(self) -> list[str]:
        """The limits of the picture."""
        t = self.timeline
        left = ranks_by((row.rank, row.left_out) for row in t.rows if row.left_out)
        lost = "oldest calls are not kept any more, and not counted"
        notes = [f"{describe_ranks(ranks)}: the {count:,} {lost}" for count, ranks in left.items()]
        if any(row.estimated > 0 for row in t.rows):
            notes.append("≈ where the end of a call was not seen: waiting is counted until the last rank came")
        if math.isinf(t.clocks.error):
            notes.append("it is unknown how far the hosts' clocks are apart: their times are used as they are")
        elif t.clocks.error > _LEAST_ERROR:
            notes.append(f"times of different hosts agree to within {format_interval(t.clocks.error)}")
        return notes

    def name(self, call: Call) -> str:
        """``all_reduce #3 of world at cell line 5``."""
        return f"{title(call)} of {self.label(call.group)}{line_of(call)}"

    @property
    def table(self) -> Table:
        """A row for each rank, with the reason where a rank is not drawn, and the notes."""
        rows = {rank: ["?", "?", "?", reason] for rank, reason in self.absent.items()}
        rows |= {rank: ["0", "0", "0", "took no part in this run"] for rank in self.elsewhere}
        for row in self.timeline.rows:
            longest = max(row.bars, key=lambda b: b.waited, default=None)
            where = ""
            if longest is not None and longest.waited > 0:
                where = f"{format_interval(longest.waited)} {self.waited_for(longest)}: {self.name(longest.call)}"
            waited = ("≈ " if row.estimated > 0 else "") + format_interval(row.suffered)
            calls = f"{len(row.bars):,}" + (f" (+{row.left_out:,})" if row.left_out else "")
            rows[row.rank] = [calls, format_interval(row.inside), waited, where]
        caused = {rank: format_interval(seconds) for rank, seconds in self.timeline.caused.items()}
        lines = (
            (r, self.places.get(r), *cells[:3], caused.get(r, cells[0]), cells[3]) for r, cells in sorted(rows.items())
        )
        return Table.of(_HEADS, lines, self.notes)

    def waited_for(self, bar: Bar) -> str:
        """``for rank 2`` or ``mostly for ranks 1, 3``, the rank that was charged most first."""
        who = sorted(bar.charged, key=lambda c: -c[1])
        if not who:
            return ""
        main = [r for r, s in who if s >= _WORTH_NAMING * bar.waited] or [who[0][0]]
        mostly = "mostly " if len(main) < len(who) else ""
        return f"{mostly}for rank{'s' * (len(main) > 1)} {_first_few([str(r) for r in main])}"

    def text(self) -> str:
        """Headline, a line of characters for each rank, and the table; for terminals and other places without SVG."""
        t = self.timeline
        lines = [self.headline, self.finding]
        if t.span > 0 and t.rows:
            wide = max(len(str(row.rank)) for row in t.rows)
            lines += ["", *(f"{row.rank:>{wide}} {_strip(row, t.span)}" for row in t.rows)]
            lines.append(f"{'':{wide}} 0{format_interval(t.span):>{_COLUMNS - 1}}")
            legend = f"{_WORK} in a call   {_WAIT} waiting there for another rank   {_CELL} elsewhere in the cell"
            lines.append(f"{'':{wide}} {legend}")
        return "\n".join([*lines, "", self.table.text()])


def _strip(row: Row, span: float) -> str:
    """One character for each stretch of time, for most of what the rank did in it; a wait wins over equal work."""
    step = span / _COLUMNS
    work, wait = [0.0] * _COLUMNS, [0.0] * _COLUMNS
    for bar in row.bars:
        _spread(wait, bar.began, bar.work, step)
        _spread(work, bar.work, bar.ended, step)
    out = []
    for i in range(_COLUMNS):
        inside = row.began < (i + 1) * step and row.ended > i * step
        if work[i] + wait[i] >= step / 2:
            out.append(_WAIT if wait[i] >= work[i] else _WORK)
        else:
            out.append(_CELL if inside else " ")
    return "".join(out)


def _spread(into: list[float], began: float, ended: float, step: float) -> None:
    first, last = max(0, int(began / step)), min(len(into) - 1, int(ended / step))
    for i in range(first, last + 1):
        into[i] += max(0.0, min(ended, (i + 1) * step) - max(began, i * step))


def title(call: Call) -> str:
    """``all_reduce #3``; ``send``."""
    return f"{call.op} #{call.number}" if call.number else call.op


def _first_few(texts: Sequence[str]) -> str:
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def line_of(call: Call) -> str:
    """`` at cell line 5``, or nothing."""
    return f" at {call.place}" if call.place else ""
