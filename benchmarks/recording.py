"""The cost of recording each collective: a loop of small ones on two ranks, and a single call."""

from __future__ import annotations

import statistics

from measuring.frontend import IDLE, private_runtime
from measuring.table import Pairs, Table, Unit

import jdist

TURNS = 200
MOST = 4.0  # Microseconds that recording may add to a call.
MICROSECONDS = Unit("µs", 1e6, 2)

LOOP = """
import time
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

t = torch.ones(4)

def took(all_reduce, clock):
    began = clock()
    for _ in range({calls}):
        all_reduce(t)
    return (clock() - began) / {calls}

turns = []
for turn in range({turns}):
    both = [dist.all_reduce, c10d.all_reduce]  # recorded, and torch's own
    seconds = dict((f, took(f, time.{clock})) for f in (both if turn % 2 else both[::-1]))
    turns.append([seconds[f] for f in both])
turns[len(turns) // 10 :]
"""


def measured(cluster: jdist.Cluster, calls: int, clock: str) -> Pairs:
    """Seconds per call on rank 0, turn by turn: recorded, and not recorded."""
    turns = cluster.run(LOOP.format(turns=TURNS, calls=calls, clock=clock)).values[0]
    return Pairs(tuple(t[0] for t in turns), tuple(t[1] for t in turns))


def main() -> None:
    table = Table("all_reduce of 4 numbers, gloo; floor: torch's own function, not wrapped")
    with jdist.start(nproc_per_node=2, idle_timeout=IDLE) as cluster:
        table.row("2 ranks, a call", measured(cluster, 50, "perf_counter"), MICROSECONDS)
    with jdist.start(nproc_per_node=1, idle_timeout=IDLE) as cluster:
        alone = measured(cluster, 500, "thread_time")
        table.row("world of one, CPU time per call", alone, MICROSECONDS)
    more = statistics.median(a - b for a, b in zip(alone.figures, alone.floors, strict=True))
    print(f"recording adds {more * 1e6:.2f} µs of the calling thread to a call; the limit is {MOST} µs")


if __name__ == "__main__":
    with private_runtime():
        main()
