"""A script as one writes it for torchrun: rank 0 sends a tensor to every other rank.

::

    torchrun --nproc-per-node 2 torchrun_style.py --backend gloo
    %dist run scripts/torchrun_style.py --backend gloo
"""

import argparse
import os

import torch
import torch.distributed as dist

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


def run(device: torch.device) -> None:
    tensor = torch.zeros(1, device=device)
    if RANK == 0:
        tensor += 42
        for dst in range(1, WORLD_SIZE):
            dist.send(tensor, dst=dst)
        print(f"rank 0 sent {tensor.item():g} to {WORLD_SIZE - 1} ranks")
    else:
        dist.recv(tensor, src=0)
        print(f"rank {RANK} has received {tensor.item():g} from rank 0")
    assert tensor.item() == 42


def main() -> None:
    parser = argparse.ArgumentParser()
    # Older launchers pass it as an argument; newer ones set LOCAL_RANK only.
    parser.add_argument("--local_rank", "--local-rank", type=int, default=LOCAL_RANK)
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo", "mpi"])
    args = parser.parse_args()

    dist.init_process_group(args.backend, rank=RANK, world_size=WORLD_SIZE)
    device = torch.device("cuda", args.local_rank) if args.backend == "nccl" else torch.device("cpu")
    run(device)


if __name__ == "__main__":
    main()
