"""From kill -9 of a rank to the first correct all_reduce of the new world, against restarting the ranks by hand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
from measuring.frontend import IDLE, private_runtime
from measuring.table import MILLISECONDS, Pairs, Table, cannot_run
from start import start_by_themselves

import jdist

RANKS = 4
TURNS = 20
FLOOR_EVERY = 4
AIM_MS = 300.0
WARM_TIMEOUT = 60.0

REDUCE = "_t = torch.ones(1)\ndist.all_reduce(_t)\n_t.item()"
PYTHON = "while True: pass"
COLLECTIVE = f"import time\nif rank == {RANKS - 1}: time.sleep(1000)\ndist.all_reduce(torch.ones(1))"


def kill_and_reduce(cluster: jdist.Cluster, busy_with: str, rank: int) -> float:
    """Seconds from the kill to the result of an all_reduce that is submitted as soon as the death is known."""
    pids = {r.rank: r.pid for r in cluster.status().ranks}
    run = cluster.run(busy_with, background=True) if busy_with else None
    if run is not None:
        wait_until(lambda: run.state == "running" and bool(cluster.look([0])[0].doing.line), 10.0)
    began = time.perf_counter()
    os.kill(pids[rank], signal.SIGKILL)
    if run is not None:
        run.wait()
    else:
        while rank in (alive := {r.rank: r.pid for r in cluster.status().ranks}) and alive[rank] == pids[rank]:
            pass  # a cell sent before the cluster knows is lost with the rank
    found = cluster.run(REDUCE, timeout=60).values
    seconds = time.perf_counter() - began
    if found != dict.fromkeys(range(cluster.world_size), float(cluster.world_size)):
        cannot_run(f"after the kill of rank {rank}, all_reduce gave {found}")
    return seconds


def wait_until(is_so: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        if time.monotonic() > deadline:
            cannot_run(f"what was waited for did not happen within {timeout:.0f} s")
        time.sleep(0.01)


def has_next(cluster: jdist.Cluster, name: str) -> bool:
    """Whether the node's spare process is ready: "jdist-next", forked ahead, or "jdist-spare", an interpreter."""
    agent = psutil.Process(cluster.status().ranks[0].pid).parent()
    children = agent.children() if agent is not None else []
    return name in {Path(f"/proc/{c.pid}/comm").read_text().strip() for c in children if c.is_running()}


def measure(table: Table, what: str, cluster: jdist.Cluster, before: Callable[[], None]) -> None:
    """A row for each state that the ranks may be in; the floor takes a turn before every fourth kill."""
    for phase, code in (("idle", ""), ("in Python", PYTHON), ("in all_reduce", COLLECTIVE)):
        figures: list[float] = []
        floors: list[float] = []
        for turn in range(TURNS):
            floors.append(floors[-1] if turn % FLOOR_EVERY else start_by_themselves(RANKS))
            before()
            figures.append(kill_and_reduce(cluster, code, turn % RANKS))
        table.row(f"{what}, {phase}", Pairs(tuple(figures), tuple(floors)), MILLISECONDS)
        table.alone("  median by itself; worst in its range", figures, MILLISECONDS, most=AIM_MS)
        print(f"  {sum(f <= AIM_MS / 1e3 for f in figures)} of {TURNS} within the aim", flush=True)


def main() -> None:
    table = Table(
        f"kill -9 of one of {RANKS} ranks, until the first right all_reduce, seen from Python; floor: as many started\n"
        "anew as fresh interpreters that import torch, form a gloo group and all_reduce"
    )
    for what, name, fork in (("forked", "jdist-next", True), ("--no-fork with a spare", "jdist-spare", False)):
        with jdist.start(RANKS, backend="gloo", idle_timeout=IDLE, fork=fork) as cluster:
            ready = partial(has_next, cluster, name)
            measure(table, what, cluster, partial(wait_until, ready, WARM_TIMEOUT))
            second = []
            for turn in range(3):
                wait_until(ready, WARM_TIMEOUT)
                kill_and_reduce(cluster, "", turn)
                second.append(kill_and_reduce(cluster, "", turn))  # the next process is not there yet
            table.alone(f"{what}, a second kill at once", second, MILLISECONDS)


if __name__ == "__main__":
    with private_runtime():
        main()
