"""Trace: the calls of torch.distributed that ranks made in a run, for users, and the queries to the ranks."""

import asyncio
import html
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from jdist.client.link import Link
from jdist.client.measure import svg
from jdist.client.measure.report import TraceReport
from jdist.client.measure.timeline import Clock, Clocks, match, read_clocks, timeline
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.observation import Call, GetTrace, Observation, Observe, RankTrace
from jdist.core.messages.protocol import RankReplyBody
from jdist.core.messages.status import ClusterFacts

# Seconds for a rank to answer, on a thread of its own, so even while its main thread is stuck. The first answer takes
# longest, on a busy machine seconds, since torch's recorder then looks up the lines of all calls.
_TIMEOUT = 20.0
Revise = Callable[[int, RankTrace], RankTrace]


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
        from jdist.client.measure.chrome import chrome  # only here: it imports numpy

        target = Path(path).expanduser()
        try:
            with target.open("w", encoding="utf-8") as file:
                file.writelines(chrome(self.report))
        except OSError as e:
            raise UsageError(f"the trace cannot be written to {target}: {e.strerror or e}; name another file") from None
        return target

    def __repr__(self) -> str:
        return self.report.text()

    def _repr_svg_(self) -> str:
        return svg.svg(self.report, "#7f7f7f")  # for a file: a grey that is readable on black and on white

    def _repr_html_(self) -> str:
        r = self.report
        picture = svg.svg(r) if r.timeline.rows else ""
        return (
            f"<div><strong>{html.escape(r.headline)}</strong></div><div>{html.escape(r.finding)}</div>"
            f'<div style="overflow-x:auto;margin:6px 0">{picture}</div>{r.table.html()}'
        )


async def collect_trace(link: Link, facts: ClusterFacts, run: int, revise: Revise = lambda _, trace: trace) -> Trace:
    """The trace of ``run`` (0: the last one), of answers that ``revise`` may add to. Raises UsageError when no rank
    knows of it.
    """
    ranks = tuple(range(facts.topology.world_size))
    places = [place for place, host in enumerate(facts.hostnames) if host]
    queries = link.query(ranks, GetTrace(run), _TIMEOUT), link.query(ranks, Observe(), _TIMEOUT)
    answers, observed = await asyncio.gather(*queries)
    clocks = await read_clocks(link, places if len(places) > 1 else (), _TIMEOUT)
    revised = {r: revise(r, a) if isinstance(a, RankTrace) else a for r, a in answers.items()}
    observations = {r: a for r, a in observed.items() if isinstance(a, Observation)}
    return assemble(revised, clocks, observations, facts, run)


def assemble(
    answers: Mapping[int, RankReplyBody],
    clocks: Mapping[int, Clock],
    observations: Mapping[int, Observation],
    facts: ClusterFacts,
    run: int = 0,
) -> Trace:
    """The trace of what ranks answered; ``clocks`` are the nodes' by place. Raises UsageError.

    ``observations`` give the groups' members and names.
    """
    topology = facts.topology
    found = {r: a for r, a in sorted(answers.items()) if isinstance(a, RankTrace)}
    others = {r: a for r, a in sorted(answers.items()) if r not in found}
    absent = {r: a.reason if isinstance(a, QueryFailed) else str(a) for r, a in others.items()}
    number = run or max((a.run for a in found.values()), default=0)
    traced = {r: a for r, a in found.items() if a.run == number and number}
    if not traced:
        raise UsageError(_nothing(run, absent))
    elsewhere = tuple(r for r in found if r not in traced)  # the others' last run is an earlier one, or none
    groups = {g.name: g for each in observations.values() for g in each.groups}
    meetings = match(traced, {name: g.ranks for name, g in groups.items()}, elsewhere)
    return Trace(
        TraceReport(
            timeline=timeline(traced, meetings, Clocks.of_ranks(traced, clocks, facts)),
            places={r: f"{topology.node_rank(r)} {topology.host_of(r)}" for r in answers},
            labels={name: g.label for name, g in groups.items()},
            absent=absent,
            elsewhere=elsewhere,
        )
    )


def _nothing(run: int, absent: Mapping[int, str]) -> str:
    if not absent:
        return f"no rank took part in run {run}" if run else "no cell has run on the ranks yet"
    reasons = list(dict.fromkeys(absent.values()))
    texts = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
    what, hint = (f"run {run}", ". Without a number, the last run is traced") if run else ("the last run", "")
    return f"nothing is known of {what}: {texts}{hint}"
