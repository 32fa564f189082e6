"""Soak: random programs under random faults, one after the other on one cluster, each checked. Seeded, so replayable.

    python -m support.soak.soak --faults 60 --seed 1        as the tests do
    python -m support.soak.soak --seconds 3600              for as long as asked, with a seed of its own

Prints a line for each fault and a table of seconds at the end; exits with 1 if anything was not as it should be.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping

import jdist
from support.soak import faults, programs

ALL_REDUCE = "_t = torch.tensor([rank + 1.0]); dist.all_reduce(_t); _t.item()"


def soak(
    cluster: jdist.Cluster,
    seed: int,
    count: int | None,
    seconds: float | None,
    chosen: Mapping[faults.Fault, int] = faults.ALL,
) -> Iterator[faults.Report]:
    """Faults until ``count`` or ``seconds`` are reached, each chosen as often as its weight says; each one's report."""
    for name, ranks in programs.GROUPS.items():
        if name != "world":
            cluster.new_group(name, list(ranks))
    cluster.run(programs.SETUP, setup=True, timeout=60)
    cluster.run(programs.TOGETHER, timeout=60)
    cluster.run(programs.MEMORY, timeout=60)
    end = None if seconds is None else time.monotonic() + seconds
    number = 0
    while (count is None or number < count) and (end is None or time.monotonic() < end):
        rng = random.Random(f"{seed}-{number}")
        (fault,) = rng.choices(list(chosen), list(chosen.values()))
        report = fault(cluster, rng)
        _check(cluster, report)
        yield report
        number += 1


def _check(cluster: jdist.Cluster, report: faults.Report) -> None:
    """The cluster is whole: the next all_reduce is right, and every survivor has all its names."""
    began = time.monotonic()
    try:
        found = cluster.run(ALL_REDUCE, timeout=faults.WAIT).values
        report.to_group = time.monotonic() - began
        if found != dict.fromkeys(range(programs.WORLD), 10.0):
            report.wrong.append(f"the next all_reduce gave {found}")
        lost = sorted(report.lost)
        if lost:
            cluster.run(programs.MEMORY, ranks=lost, timeout=faults.WAIT)
        intact = cluster.run(programs.INTACT, timeout=faults.WAIT).values
        remembers = cluster.run(programs.REMEMBERS, timeout=faults.WAIT).values
        if lost:
            cluster.run(programs.TOGETHER, timeout=faults.WAIT)
        elif report.aborted:  # their DDP was handed over
            cluster.run(programs.DDP_STEP, timeout=faults.WAIT)
        if report.aborted:  # their names were made in another process
            cluster.run(programs.MARK, ranks=sorted(report.aborted), timeout=faults.WAIT)
    except jdist.JdistError as e:
        report.wrong.append(f"the next cell failed: {e}")
        cluster.run(
            f"{programs.SETUP}\n{programs.TOGETHER}\n{programs.MEMORY}", timeout=faults.WAIT
        )  # for the next one
        return
    for rank in intact:
        if not (intact[rank] or rank in report.aborted) or not remembers[rank]:
            report.wrong.append(f"rank {rank} has lost names")
    fresh = {r.rank for r in cluster.status().ranks if r.fresh}
    _check.fresh |= report.lost  # type: ignore[attr-defined]
    if fresh - _check.fresh:  # type: ignore[attr-defined]
        report.wrong.append(f"ranks {sorted(fresh)} are fresh, and nobody killed them")


_check.fresh = set()  # type: ignore[attr-defined]


def table(reports: list[faults.Report]) -> str:
    """Faults by kind, verdicts, and seconds: median and worst."""
    kinds = Counter(r.kind for r in reports)
    verdicts = Counter(r.verdict for r in reports if r.verdict)
    lines = [f"{len(reports)} faults: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())]
    lines.append("verdicts: " + (", ".join(f"{n} {what}" for what, n in verdicts.most_common()) or "none due"))
    for name in ("to_verdict", "to_freedom", "to_group"):
        values = [v for r in reports if (v := getattr(r, name)) is not None]
        if values:
            middle, worst = statistics.median(values), max(values)
            lines.append(f"seconds {name.replace('_', ' ')}: median {middle:.2f}, worst {worst:.2f} of {len(values)}")
    return "\n".join(lines)


def _seconds(report: faults.Report) -> str:
    found = (report.to_verdict, report.to_freedom, report.to_group)
    return " ".join("   -" if s is None else f"{s:4.1f}" for s in found)


def main() -> int:
    """The exit code."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--faults", type=int, help="how many")
    p.add_argument("--seconds", type=float, help="for how long")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    o = p.parse_args()
    count = o.faults if o.faults or o.seconds else 60
    print(f"seed {o.seed}", flush=True)
    reports = []
    with jdist.start(2, 2, backend="gloo", timeout=60) as cluster:
        for number, report in enumerate(soak(cluster, o.seed, count, o.seconds)):
            reports.append(report)
            wrong = "; ".join(report.wrong)
            print(f"{number:4} {report.kind:24} {report.verdict or '-':8} {_seconds(report)}  {wrong}", flush=True)
    print("columns: fault, verdict, seconds to the verdict, to freedom and to a right all_reduce")
    print(table(reports))
    return 1 if any(r.wrong for r in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
