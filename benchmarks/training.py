"""A DDP training loop in a cell, against the same lines under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring.frontend import IDLE, private_runtime
from measuring.table import SECONDS, Pairs, Table

import jdist

RANKS = 2
STEPS = 200
TURNS = 9
AIM = 1.02

Seconds = tuple[float, float]
"""By the clock, and of CPU time."""

BODY = f"""
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256), torch.nn.ReLU(),
                        torch.nn.Linear(256, 10))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
for step in range({STEPS} + 20):
    if step == 20:
        dist.barrier()
        began, cpu_began = time.perf_counter(), time.process_time()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
"""
SCRIPT = f"""
import os
import torch.distributed as dist

dist.init_process_group("gloo")
{BODY}
if dist.get_rank() == 0:
    with open(os.environ["BENCH_REPORT"], "w") as report:
        report.write(f"{{seconds}} {{cpu_seconds}}")
dist.destroy_process_group()
"""


def under_torchrun(folder: Path) -> Seconds:
    """Seconds of the loop, as rank 0 measured them."""
    script, report = folder / "train.py", folder / "seconds"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(script)]
    env = {**_environment(), "BENCH_REPORT": str(report)}
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=300)
    seconds, cpu_seconds = map(float, report.read_text().split())
    return seconds, cpu_seconds


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}  # torchrun's own default for several ranks, as it is jdist's


def in_a_cell(cluster: jdist.Cluster) -> Seconds:
    """Seconds of the loop, as rank 0 measured them."""
    seconds, cpu_seconds = cluster.run(f"{BODY}\nseconds, cpu_seconds").values[0]
    return seconds, cpu_seconds


def main() -> None:
    table = Table(f"DDP, {RANKS} ranks, gloo, {STEPS} steps after 20 to warm up; floor: the same lines under torchrun")
    turns: list[tuple[Seconds, Seconds]] = []
    with (
        jdist.start(nproc_per_node=RANKS, idle_timeout=IDLE) as cluster,
        tempfile.TemporaryDirectory(prefix="jdist-bench-") as folder,
    ):
        in_a_cell(cluster)
        for turn in range(TURNS):
            if turn % 2:
                floor = under_torchrun(Path(folder))
                turns.append((in_a_cell(cluster), floor))
            else:
                figure = in_a_cell(cluster)
                turns.append((figure, under_torchrun(Path(folder))))
    for which, what in enumerate(("training loop", "training loop, CPU time of rank 0")):
        measured = Pairs(tuple(t[0][which] for t in turns), tuple(t[1][which] for t in turns))
        table.row(what, measured, SECONDS, most=AIM)


if __name__ == "__main__":
    with private_runtime():
        main()
