"""The controller's CPU time and memory for a cell, for output, a status report and a verdict, as the world grows.

The controller is the real one, in its own process; the agents are simulated (see measuring/nodes): they speak the real
protocol over real sockets and run nothing. Its CPU time is read from the operating system, so that other load on
the machine hardly matters.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
from measuring.chart import Curve, chart
from measuring.frontend import private_runtime
from measuring.table import cannot_run

import jdist
from jdist.client.find import directory
from jdist.core.settings import Settings

NODES = (1, 8, 32, 128, 512)
NPROC = 8
TURNS = 10
LINES = 1000
TIMEOUT = 120.0


@dataclass(frozen=True)
class Figures:
    """The figures of one world size: the controller's CPU seconds and own bytes (USS), and the seconds to a verdict."""

    nodes: int
    start: float
    idle: float  # Per second, with nothing to do.
    cell: float
    lines: float
    report: float
    verdict: float  # From the cell, in which all ranks but one wait for that one, until the client has been told why.
    memory: int
    grown: float  # Bytes per cell that prints nothing.

    @property
    def ranks(self) -> int:
        return self.nodes * NPROC


class Controller:
    """The controller's process, seen from outside."""

    def __init__(self, pid: int):
        self._process = psutil.Process(pid)
        self._pid = pid

    def cpu(self) -> float:
        """CPU seconds of all its threads, to the nanosecond."""
        tasks = Path(f"/proc/{self._pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def memory(self) -> int:
        return int(self._process.memory_full_info().uss)

    def during(self, action: Callable[[], object], turns: int) -> float:
        """The median of its CPU time for ``action`` over the turns."""
        found = []
        for _ in range(turns):
            before = self.cpu()
            action()
            found.append(self.cpu() - before)
        return statistics.median(found)


@contextmanager
def cluster(nodes: int) -> Iterator[tuple[Controller, jdist.Cluster]]:
    """A formed world of simulated nodes."""
    settings = Settings(
        name=f"scale-{nodes}",
        nnodes=nodes,
        nproc_per_node=(NPROC,),
        backend="gloo",
        idle_timeout=60,
        beat_timeout=TIMEOUT,  # a machine that is busy otherwise loses no node
        node_grace=2 * TIMEOUT,
    )
    birth = msgspec.json.encode({"settings": settings, "directory": str(directory()), "charter": None})
    with Path(directory(), "scale.log").open("ab") as log, _process("-m", "jdist", "controller", log=log) as controller:
        _write(controller, birth)
        born = msgspec.json.decode(controller.stdout.readline() if controller.stdout else b"{}")
        if born.get("error", "it said nothing"):
            cannot_run(f"the controller: {born}")
        with _process("-m", "measuring.nodes", str(nodes), str(NPROC), log=log) as agents:
            _write(agents, born["join_line"].encode())
            attached = jdist.attach(settings.name)
            try:
                _until_formed(attached, agents)
                yield Controller(controller.pid), attached
            finally:
                attached.stop()
                agents.wait(TIMEOUT)
                controller.wait(TIMEOUT)


@contextmanager
def _process(*words: str, log: object) -> Iterator[subprocess.Popen[bytes]]:
    here = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
    process = subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env
    )  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    if process.stdin is not None:
        process.stdin.write(line + b"\n")
        process.stdin.flush()


def _until_formed(attached: jdist.Cluster, agents: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while attached.status().facts.phase != "ready":
        if agents.poll() is not None or time.monotonic() > deadline:
            cannot_run("the made-up nodes did not form a world:\n" + Path(directory(), "scale.log").read_text()[-2000:])
        time.sleep(0.05)


def measure(nodes: int, turns: int) -> Figures:
    """Start a cluster of that many nodes, measure it and stop it."""
    with cluster(nodes) as (controller, attached):
        ranks = nodes * NPROC

        def run(code: str) -> None:
            outcomes = attached.run(code, timeout=TIMEOUT).outcomes
            if len(outcomes) != ranks or not all(o.ok for o in outcomes.values()):
                cannot_run(f"{code} on {ranks} ranks: {len(outcomes)} outcomes")

        def report() -> None:
            if len(attached.look(timeout=TIMEOUT)) != ranks:
                cannot_run(f"not all of {ranks} ranks were told of")

        def verdict() -> None:
            hung = attached.run("hang", background=True)
            deadline = time.monotonic() + TIMEOUT
            while hung.verdict is None and time.monotonic() < deadline:
                time.sleep(0.001)
            if hung.verdict is None or hung.verdict.responsible != (ranks - 1,):
                cannot_run(f"{ranks - 1} ranks wait for one more: {hung.verdict}")
            times.append(time.monotonic() - deadline + TIMEOUT)
            attached.interrupt()
            hung.wait(TIMEOUT)

        times: list[float] = []
        start = controller.cpu()
        run("pass")
        report()
        began = controller.cpu()
        time.sleep(1.0)
        idle = controller.cpu() - began
        memory = controller.memory()
        cell = controller.during(lambda: run("pass"), turns)
        before = controller.memory()
        for _ in range(turns):
            run("pass")
        grown = (controller.memory() - before) / turns
        lines = controller.during(lambda: run(f"lines {LINES}"), turns) - cell
        reported = controller.during(report, turns)
        for _ in range(turns):
            verdict()
        return Figures(nodes, start, idle, cell, lines, reported, statistics.median(times), memory, grown)


def row(f: Figures) -> str:
    """Format a line of the table."""
    times = (f"{1e3 * s:.1f} ms" for s in (f.start, f.idle, f.cell, f.lines, f.report, f.verdict))
    columns = (*times, f"{f.memory / 1e6:.1f} MB", f"{f.grown / 1e3:+.1f} kB")
    return f"{f.nodes:5} {f.ranks:5} " + " ".join(f"{c:>10}" for c in columns)


def growth(what: str, first: Figures, last: Figures) -> str:
    """How a figure grows with the number of ranks."""
    share = getattr(last, what) / getattr(first, what) / (last.ranks / first.ranks)
    judged = "" if share < 1 else " missed"
    return f"{what:>8}: {share:.2f} of what it would be if it grew as the ranks (aim: < 1){judged}"


def draw(found: list[Figures]) -> str:
    """Draw the table as a chart."""
    curves = [
        Curve("an empty cell", [(f.ranks, 1e3 * f.cell) for f in found]),
        Curve("1,000 lines alike", [(f.ranks, 1e3 * f.lines) for f in found]),
        Curve("a report of each rank", [(f.ranks, 1e3 * f.report) for f in found]),
        Curve("a verdict (elapsed)", [(f.ranks, 1e3 * f.verdict) for f in found]),
    ]
    title = "The controller's CPU time, and the time to a verdict, by the ranks of the world"
    return chart(title, "ranks", "ms", curves)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nodes", type=int, nargs="+", default=NODES)
    p.add_argument("--turns", type=int, default=TURNS)
    p.add_argument("--figure", type=Path, help="an SVG of the table")
    o = p.parse_args()
    print(f"the controller's CPU time and memory, {NPROC} made-up ranks a node; load {os.getloadavg()[0]:.1f}")
    names = ("start", "idle, a s", "cell", "1000 lines", "report", "verdict", "memory", "each cell")
    print("nodes ranks " + " ".join(f"{n:>10}" for n in names))
    found = []
    for nodes in o.nodes:
        found.append(measure(nodes, o.turns))
        print(row(found[-1]), flush=True)
    if len(found) > 1:
        for what in ("cell", "lines", "report", "verdict", "memory"):
            print(growth(what, found[0], found[-1]))
    if o.figure is not None:
        o.figure.write_text(draw(found))


if __name__ == "__main__":
    with private_runtime():
        main()
