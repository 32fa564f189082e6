"""Report: a timeline in words: its headline, what is to be said with it, and its table by rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from jdist.client.trace.timeline import Bar, Row, Timeline
from jdist.core.observation import Call
from jdist.core.quantities import format_interval
from jdist.core.ranks import RankSet

HEADS = ("rank", "node", "calls", "in calls", "waited", "made others wait", "longest wait")
_WORTH_SAYING = 0.01
"""Waiting of less than this part of the ranks' time is not in the headline."""
_WORTH_NAMING = 0.1
"""Who was charged with less than this part of a wait is not named."""
_LEAST_ERROR = 1e-4
"""Clocks that agree within this many seconds need no remark."""


class Report(Struct, frozen=True):
    """A timeline, and the names that go with it."""

    timeline: Timeline
    places: dict[int, str]
    """``"0 host-a"``, the node of each rank of the cluster."""
    labels: dict[str, str]
    """What a person calls a group, by torch's name."""
    absent: dict[int, str]
    """Why a rank is not drawn."""
    elsewhere: tuple[int, ...] = ()
    """Ranks that had no part in the run."""

    def label(self, group: str) -> str:
        """What a person calls the group."""
        return self.labels.get(group) or ("world" if group == "0" else f"group {group}")

    @property
    def groups(self) -> tuple[str, ...]:
        """Torch's names of the groups that were used, most used first."""
        counts: dict[str, int] = {}
        for row in self.timeline.rows:
            for bar in row.bars:
                counts[bar.call.group] = counts.get(bar.call.group, 0) + 1
        return tuple(sorted(counts, key=lambda g: (-counts[g], g)))

    @property
    def headline(self) -> str:
        """``run 3 · 4 ranks · 1.2 s · 12 calls``; who is missing."""
        t = self.timeline
        calls = sum(len(row.bars) for row in t.rows)
        ranks = f"{len(t.rows)} rank{'s' if len(t.rows) != 1 else ''}"
        if self.elsewhere:
            ranks += f", {_ranks(self.elsewhere)} had no part"
        if self.absent:
            ranks += f", {_ranks(self.absent)} missing"
        going = " so far" if any(row.is_running for row in t.rows) else ""
        return f"run {t.run} · {ranks} · {format_interval(t.span)}{going} · {calls:,} call{'s' if calls != 1 else ''}"

    @property
    def finding(self) -> str:
        """Who made the others wait most, and where."""
        t = self.timeline
        if not any(row.bars for row in t.rows):
            return "no rank called anything of torch.distributed in this run"
        total = sum(t.suffered.values())
        if total <= _WORTH_SAYING * t.span * len(t.rows):
            return "no rank waited long for another"
        worst = max(t.caused, key=lambda r: t.caused[r])
        found = f"rank {worst} made others wait {format_interval(t.caused[worst])} of {format_interval(total)} in all"
        return f"{found}{self._most_of(worst)}"

    def _most_of(self, rank: int) -> str:
        """Where most of the waiting that it caused was: in which calls, and whether a single one stands out."""
        by_place: dict[tuple[str, str, int | None], dict[int, float]] = {}
        example: dict[int, Bar] = {}
        for bar in (b for row in self.timeline.rows for b in row.bars):
            charged = dict(bar.charged).get(rank, 0.0)
            if charged:
                place = by_place.setdefault((bar.call.op, bar.call.group, bar.call.line), {})
                place[bar.meeting] = place.get(bar.meeting, 0.0) + charged
                example[bar.meeting] = bar
        if not by_place:
            return ""
        place = max(by_place.values(), key=lambda found: sum(found.values()))
        most = max(place, key=lambda meeting: place[meeting])
        call = example[most].call
        if len(place) == 1 or place[most] > sum(place.values()) / 2:
            return f", {format_interval(place[most])} of it in {self.name(call)}"
        at = f" at cell line {call.line}" if call.line is not None else ""
        calls = f"{len(place):,} calls of {call.op} in {self.label(call.group)}"
        return f", {format_interval(sum(place.values()))} of it in {calls}{at}"

    @property
    def notes(self) -> list[str]:
        """What the picture does not show."""
        t = self.timeline
        said = []
        left = {row.rank: f"{row.left_out:,}" for row in t.rows if row.left_out}
        said += [f"{_ranks(r)}: the {n} oldest calls are not kept any more, and not counted" for n, r in _grouped(left)]
        if any(row.estimated > 0 for row in t.rows):
            said.append("≈ where the end of a call was not seen: waiting is counted until the last rank came")
        if t.clocks.moved:
            said.append("the hosts' clocks did not run alike during the run: times of different hosts are rough")
        elif math.isinf(t.clocks.error):
            said.append("nothing tells how far the hosts' clocks are apart: they are taken as they are")
        elif t.clocks.error > _LEAST_ERROR:
            said.append(f"times of different hosts are right within {format_interval(t.clocks.error)} of each other")
        return said

    def name(self, call: Call) -> str:
        """``all_reduce #3 of world at cell line 5``."""
        at = f" at cell line {call.line}" if call.line is not None else ""
        return f"{title(call)} of {self.label(call.group)}{at}"

    def table(self) -> list[list[str]]:
        """Cells by rank, under :data:`HEADS`; ranks that are not drawn say why."""
        rows = {row.rank: self._cells(row) for row in self.timeline.rows}
        for rank, reason in self.absent.items():
            rows[rank] = [str(rank), self.places.get(rank, ""), "?", "?", "?", "?", reason]
        for rank in self.elsewhere:
            rows[rank] = [str(rank), self.places.get(rank, ""), "0", "0", "0", "0", "had no part in this run"]
        for rank, cells in rows.items():
            caused = self.timeline.caused.get(rank)
            cells[5] = cells[5] if caused is None else format_interval(caused)
        return [rows[r] for r in sorted(rows)]

    def _cells(self, row: Row) -> list[str]:
        longest = max(row.bars, key=lambda b: b.waited, default=None)
        where = ""
        if longest is not None and longest.waited > 0:
            where = f"{format_interval(longest.waited)} {self.waited_for(longest)}: {self.name(longest.call)}"
        about = "≈ " if row.estimated > 0 else ""
        calls = f"{len(row.bars):,}" + (f" (+{row.left_out:,})" if row.left_out else "")
        return [
            str(row.rank),
            self.places.get(row.rank, ""),
            calls,
            format_interval(row.inside),
            about + format_interval(row.suffered),
            "",
            where,
        ]

    def waited_for(self, bar: Bar) -> str:
        """``for rank 2`` or ``mostly for ranks 1, 3``, whoever was charged most first."""
        who = sorted(bar.charged, key=lambda c: -c[1])
        if not who:
            return ""
        main = [r for r, s in who if s >= _WORTH_NAMING * bar.waited] or [who[0][0]]
        shown = ", ".join(map(str, main[:3])) + (f" and {len(main) - 3} more" if len(main) > 3 else "")
        mostly = "mostly " if len(main) < len(who) else ""
        return f"{mostly}for rank{'s' if len(main) > 1 else ''} {shown}"

    def hover(self, bar: Bar) -> str:
        """Everything about a call, a line each."""
        call = bar.call
        what = [f"rank {bar.rank}: {title(call)} of {self.label(call.group)}"]
        if call.peer is not None:
            other = "any rank" if call.peer < 0 else f"rank {call.peer}"
            what[0] += f" {'from' if 'recv' in call.op else 'to'} {other}" + (f", tag {call.tag}" if call.tag else "")
        tensors = tensors_text(call)
        what += [" ".join(filter(None, (tensors, call.detail)))] if tensors or call.detail else []
        if call.line is not None:
            what.append(f"cell line {call.line}")
        what.append(f"at {format_interval(bar.began)}, for {format_interval(bar.ended - bar.began)}{_end(bar)}")
        if bar.waited > 0:
            about = "about " if bar.is_estimate else ""
            what.append(f"waited {about}{format_interval(bar.waited)} {self.waited_for(bar)}")
        if bar.missing:
            what.append(f"{_ranks(bar.missing)} never entered it")
        return "\n".join(what)


def title(call: Call) -> str:
    """``all_reduce #3``; ``send``."""
    return f"{call.op} #{call.number}" if call.number else call.op


def tensors_text(call: Call) -> str:
    """``[16] float32``, the first few."""
    pairs = [
        f"{list(s)} {d}".strip() for s, d in zip(call.shapes, [*call.dtypes, *[""] * len(call.shapes)], strict=False)
    ]
    more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return ", ".join(pairs[:3]) + more


def _end(bar: Bar) -> str:
    if not bar.is_open:
        return ""
    return ", its end was not seen" if bar.call.is_done else ", still in it"


def _ranks(ranks: Iterable[int]) -> str:
    found = RankSet(ranks)
    return f"rank{'s' if len(list(found)) != 1 else ''} {found}"


def _grouped(texts: dict[int, str]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        found.setdefault(text, []).append(rank)
    return list(found.items())
