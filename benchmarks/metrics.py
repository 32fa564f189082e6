"""The cost of ``jdist.log``: a call by itself, and a training loop that logs two numbers each step."""

from __future__ import annotations

import statistics

from measuring.frontend import IDLE, private_runtime
from measuring.table import Pairs, Table, Unit

import jdist

TURNS = 30
STEPS = 40
MICROSECONDS = Unit("µs", 1e6, 2)
MOST = 2.0  # Microseconds of a call.
MOST_SHARE = 1.01

LOOP = """
import jdist
import time
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))

def train(log, clock):
    began = clock()
    for step in range({steps}):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log(loss=loss, lr=0.01, step=step)
    return (clock() - began) / {steps}

def silent(**_): pass

turns = []
for turn in range({turns}):
    both = [jdist.log, silent]
    seconds = dict((f, train(f, time.{clock})) for f in (both if turn % 2 else both[::-1]))
    turns.append([seconds[f] for f in both])
turns[len(turns) // 10 :]
"""
CALLS = """
import jdist
import time

def silent(**_): pass

def took(log):
    began = time.thread_time()
    for step in range({calls}):
        log(loss=0.5, lr=0.01, step=step)
    return (time.thread_time() - began) / {calls}

turns = []
for turn in range({turns}):
    turns.append([took(jdist.log), took(silent)])
    time.sleep(0.02)  # the loop of a training is not only this
turns[len(turns) // 10 :]
"""


def measured(cluster: jdist.Cluster, code: str) -> Pairs:
    """Seconds on rank 0, turn by turn: with ``jdist.log``, and with a function that does nothing."""
    turns = cluster.run(code).values[0]
    return Pairs(tuple(t[0] for t in turns), tuple(t[1] for t in turns))


def main() -> None:
    table = Table("jdist.log of two numbers; floor: a function that does nothing in its place")
    with jdist.start(nproc_per_node=1, idle_timeout=IDLE) as cluster:
        call = measured(cluster, CALLS.format(calls=1000, turns=TURNS))
        table.row("a call, floats, CPU time of its thread", call, MICROSECONDS)
        step = measured(cluster, LOOP.format(steps=STEPS, turns=TURNS, clock="process_time"))
        table.row("a training step, CPU time of the process", step, MICROSECONDS, most=MOST_SHARE)
    with jdist.start(nproc_per_node=2, idle_timeout=IDLE) as cluster:
        step = measured(cluster, LOOP.format(steps=STEPS, turns=TURNS, clock="perf_counter"))
        table.row("a training step, 2 ranks", step, MICROSECONDS, most=MOST_SHARE)
    more = statistics.median(a - b for a, b in zip(call.figures, call.floors, strict=True))
    print(f"a call takes {more * 1e6:.2f} µs of the calling thread; the limit is {MOST} µs")


if __name__ == "__main__":
    with private_runtime():
        main()
