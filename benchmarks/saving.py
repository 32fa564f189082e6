"""A save of a replicated and of a sharded session: how long the ranks are busy, and until everything is on the disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

from measuring.frontend import IDLE, private_runtime
from measuring.table import MILLISECONDS, Table, pairs

import jdist

RANKS = 2
TURNS = 5
MIB = 256  # Of each session's tensors; a replica has as much on each rank.

MAKE = f"""
import shutil, time
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

torch.manual_seed(0)
parts = [torch.randn({MIB} << 14) for _ in range(16)]
replica = dict(enumerate(parts))
mesh = init_device_mesh("cpu", (world_size,))
sharded = {{n: distribute_tensor(part, mesh, [Shard(0)]) for n, part in replica.items()}}
del parts

def saved_by_torch(values, folder):
    shutil.rmtree(folder, ignore_errors=True) if rank == 0 else None
    dist.barrier()
    began = time.perf_counter()
    dcp.save({{"values": values}}, storage_writer=dcp.FileSystemWriter(folder, sync_files=True))
    return time.perf_counter() - began
"""


def main() -> None:
    table = Table(
        f"a save of {MIB} MiB of tensors on {RANKS} ranks; floor: torch.distributed.checkpoint.save of the same, for\n"
        "which the ranks wait"
    )
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as folder,
        jdist.start(RANKS, backend="gloo", idle_timeout=IDLE) as cluster,
    ):
        cluster.run(MAKE, timeout=120)
        for name in ("replica", "sharded"):

            def by_torch(name: str = name) -> float:
                return max(cluster.run(f"saved_by_torch({name}, {folder + '/torch'!r})", timeout=120).values.values())

            def busy(name: str = name) -> float:
                return cluster.save(f"{folder}/jdist", name, keep=1).busy_seconds

            def complete(name: str = name) -> float:
                return cluster.save(f"{folder}/jdist", name, keep=1).seconds

            table.row(f"{name}: the ranks are busy", pairs(busy, by_torch, TURNS, warm_up=1), MILLISECONDS)
            table.row(f"{name}: complete on the disk", pairs(complete, by_torch, TURNS), MILLISECONDS)


if __name__ == "__main__":
    with private_runtime():
        main()
