"""A script as one writes it for mpirun: its place in the world comes from OpenMPI's environment.

::

    mpirun -np 4 -x MASTER_ADDR=… -x MASTER_PORT=… python mpirun_style.py --backend gloo
    %dist run scripts/mpirun_style.py --backend gloo
"""

import argparse
import os

import torch
import torch.distributed as dist

WORLD_RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
WORLD_SIZE = int(os.environ["OMPI_COMM_WORLD_SIZE"])
LOCAL_RANK = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])


def run(device: torch.device) -> None:
    ring = torch.tensor([float(WORLD_RANK)], device=device)
    left, right = (WORLD_RANK - 1) % WORLD_SIZE, (WORLD_RANK + 1) % WORLD_SIZE
    sent = dist.isend(ring, dst=right)
    received = torch.empty_like(ring)
    dist.recv(received, src=left)
    sent.wait()
    print(f"rank {WORLD_RANK} (local rank {LOCAL_RANK}) heard from its left neighbour, rank {received.item():g}")
    assert received.item() == left


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo", "mpi"])
    args = parser.parse_args()

    dist.init_process_group(args.backend, rank=WORLD_RANK, world_size=WORLD_SIZE)
    run(torch.device("cuda", LOCAL_RANK) if args.backend == "nccl" else torch.device("cpu"))


if __name__ == "__main__":
    main()
