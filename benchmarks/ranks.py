"""Seconds to a start, an empty cell, a verdict, and a right all_reduce after a kill, as the number of real ranks grows.

All ranks run on this machine, so where they are more than its cores, they wait for one another. The floor of a recovery
is gloo alone (see measuring/gloo): forked processes that leave a group and form the next one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from hangs import HANGS, hang
from measuring.chart import Curve, chart
from measuring.frontend import IDLE, private_runtime
from measuring.table import cannot_run, timed
from recovery import REDUCE, WARM_TIMEOUT, has_next, kill_and_reduce, wait_until

import jdist

RANKS = (2, 4, 8, 16, 32)
TURNS = 3
TIMEOUT = 120.0
WATCHED = 0.5
SKIPS = HANGS["a rank skips a collective"]


@dataclass(frozen=True)
class Figures:
    """Seconds for one number of ranks: medians, but the start is measured once."""

    ranks: int
    start: float  # Until the first all_reduce.
    cell: float
    verdict: float  # From when all ranks but one wait for that one.
    recovery: float  # From kill -9 of an idle rank until the first right all_reduce.
    gloo: float  # The floor of a recovery.


def measure(ranks: int, turns: int) -> Figures:
    """Start a cluster of that many ranks, measure it and stop it."""

    def median(figure: Callable[[int], float]) -> float:
        return statistics.median(figure(turn) for turn in range(turns))

    gloo = form_by_itself(ranks, turns)
    began = time.perf_counter()
    with jdist.start(ranks, backend="gloo", idle_timeout=IDLE) as cluster:
        cluster.run(REDUCE, timeout=TIMEOUT)
        start = time.perf_counter() - began

        def cell(_: int) -> float:
            return timed(lambda: cluster.run("pass").check())

        def recovery(turn: int) -> float:
            wait_until(lambda: has_next(cluster, "jdist-next") and not is_warming(cluster), WARM_TIMEOUT)
            return kill_and_reduce(cluster, "", turn % ranks)

        return Figures(ranks, start, median(cell), median(lambda _: hang(cluster, SKIPS)[0]), median(recovery), gloo)


def is_warming(cluster: jdist.Cluster) -> bool:
    """Whether a forkserver of the node imports something, which takes a core for seconds after a rank was replaced."""
    agent = psutil.Process(cluster.status().ranks[0].pid).parent()
    children = agent.children() if agent is not None else []
    forkservers = [c for c in children if not c.name().startswith("jdist-rank")]
    before = sum(c.cpu_times().user for c in forkservers)
    time.sleep(WATCHED)
    return bool(sum(c.cpu_times().user for c in forkservers) - before > WATCHED / 5)


def form_by_itself(ranks: int, turns: int) -> float:
    """Seconds until gloo alone has left a group of that many ranks and formed the next one."""
    command = [sys.executable, "-m", "measuring.gloo", str(ranks), str(turns)]
    here = Path(__file__).parent
    found = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if found.returncode:
        cannot_run(f"{ranks} ranks of gloo alone:\n{found.stderr[-2000:]}")
    return statistics.median(map(float, found.stdout.split()))


def draw(found: list[Figures]) -> str:
    """Draw the table as a chart."""
    names = {
        "start": "a start",
        "recovery": "a recovery from kill -9",
        "gloo": "its floor: gloo alone",
        "verdict": "a verdict",
        "cell": "an empty cell",
    }
    curves = [Curve(name, [(f.ranks, getattr(f, key)) for f in found]) for key, name in names.items()]
    return chart(f"Seconds by the number of real ranks, all on {_cores()} cores", "ranks", "s", curves)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="128 take 8 GB of memory")
    p.add_argument("--turns", type=int, default=TURNS)
    p.add_argument("--figure", type=Path, help="an SVG of the table")
    o = p.parse_args()
    print(f"seconds; {_cores()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'ranks':>5} " + " ".join(f"{n:>9}" for n in ("start", "cell", "verdict", "recovery", "gloo", "ratio")))
    found = []
    for ranks in o.ranks:
        found.append(f := measure(ranks, o.turns))
        columns = (f.start, f.cell, f.verdict, f.recovery, f.gloo, f.recovery / f.gloo)
        print(f"{ranks:5} " + " ".join(f"{c:9.2f}" for c in columns), flush=True)
    if o.figure is not None:
        o.figure.write_text(draw(found))


if __name__ == "__main__":
    with private_runtime():
        main()
