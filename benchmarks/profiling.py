"""A DDP training loop in a cell that is profiled, against the same cell that is not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from measuring.frontend import IDLE, private_runtime
from measuring.table import SECONDS, Pairs, Table

import jdist

RANKS = 2
STEPS = 200
TURNS = 9
AIM = 2.0
SIZES = {"small layers (256 to 512)": 512, "larger layers (256 to 4096)": 4096}

MODEL = """
import time
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(256, {width}), torch.nn.ReLU(), torch.nn.Linear({width}, 256), torch.nn.ReLU(),
                        torch.nn.Linear(256, 10))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
"""
LOOP = """
dist.barrier()
began = time.perf_counter()
for step in range({steps}):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
time.perf_counter() - began
"""


def main() -> None:
    table = Table(f"DDP under torch.profiler, {RANKS} ranks, gloo; floor: the same cell without a profile")
    with (
        jdist.start(nproc_per_node=RANKS, idle_timeout=IDLE) as cluster,
        tempfile.TemporaryDirectory(prefix="jdist-bench-") as folder,
    ):
        for what, width in SIZES.items():
            steps = STEPS if width < 1000 else STEPS // 5
            loop = LOOP.format(steps=steps)
            cluster.run(MODEL.format(width=width))
            cluster.run(loop)
            profiled, plain = [], []
            for _ in range(TURNS):
                plain.append(float(cluster.run(loop).values[0]))
                profile = cluster.profile(loop)
                assert profile.run is not None
                profiled.append(float(profile.run.values[0]))
            table.row(f"{steps} steps, {what}", Pairs(tuple(profiled), tuple(plain)), SECONDS, most=AIM)
            size = profile.save(Path(folder) / "profile.json").stat().st_size
            operators = sum(len(each.starts) for each in profile.report.ranks.values())
            print(f"  {operators:,} operators, {size / 1e6:.1f} MB of trace, {size / operators:.0f} bytes for each")


if __name__ == "__main__":
    with private_runtime():
        main()
