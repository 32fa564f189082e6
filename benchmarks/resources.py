"""What recording resources costs a node: a sample, an idle agent's CPU time, and an hour's history that is read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from measuring.frontend import IDLE, private_runtime
from measuring.table import Pairs, Table, Unit

import jdist
from jdist.agent.resources import Usage, UsageHistory, UsageReader

TURNS = 15
SAMPLES = 20
IDLE_SECONDS = 20.0
MILLISECONDS = Unit("ms", 1e3, 2)
HOUR = 3600


def read_files() -> None:
    """The floor of a sample: the same files, read and not understood."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                Path("/proc", name, "stat").read_bytes()
            except OSError:
                continue


def cost(work: Callable[[], object]) -> float:
    """CPU seconds of one call, averaged over some."""
    began = time.thread_time()
    for _ in range(SAMPLES):
        work()
    return (time.thread_time() - began) / SAMPLES


def sampled(pids: dict[int, int]) -> Pairs:
    reader = UsageReader()
    turns = [(cost(lambda: reader.read(pids)), cost(read_files)) for _ in range(TURNS)]
    return Pairs(tuple(a for a, _ in turns), tuple(b for _, b in turns))


def read_history(ranks: int, seconds: float, points: int) -> Pairs:
    """An answer to a client, against adding up all of its numbers."""
    history = UsageHistory()
    own = {rank: dict.fromkeys(("cpu", "memory", "gpu", "gpu_memory"), 1.0) for rank in range(ranks)}
    for second in range(HOUR):
        history.add(float(second), Usage({"cpu": 1.0, "memory": 1.0, "received": 1.0, "sent": 1.0}, own))
    numbers = [1.0] * int(seconds * (4 + 4 * ranks))
    turns = []
    for _ in range(5):
        began = time.thread_time()
        history.read(float(HOUR), seconds, points)
        between = time.thread_time()
        sum(numbers)
        turns.append((between - began, time.thread_time() - between))
    return Pairs(tuple(a for a, _ in turns), tuple(b for _, b in turns))


def main() -> None:
    table = Table("Recording of resources, CPU time; floors are named in the rows")
    with jdist.start(nproc_per_node=4, idle_timeout=IDLE) as cluster:
        pids = {row.rank: row.pid for row in cluster.status().ranks}
        agent = psutil.Process(cluster.run("import os\nos.getppid()", ranks=[0]).values[0])
        count = len(psutil.pids())
        table.row(f"a sample with {count} processes; reading their files", sampled(pids), MILLISECONDS)
        before = agent.cpu_times()
        time.sleep(IDLE_SECONDS)
        after = agent.cpu_times()
    for ranks, seconds, points in ((8, 300, 120), (8, HOUR, 120), (64, 300, 120)):
        what = f"an answer: {ranks} ranks, {seconds // 60} min; a sum of its numbers"
        table.row(what, read_history(ranks, seconds, points), MILLISECONDS)
    share = (after.user + after.system - before.user - before.system) / IDLE_SECONDS
    print(f"an idle agent of 4 ranks takes {share:.2%} of a core in all, with its heartbeats and samples")


if __name__ == "__main__":
    with private_runtime():
        main()
