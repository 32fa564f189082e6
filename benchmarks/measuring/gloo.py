"""gloo alone, as a process of its own: forked ranks that leave a group and form the next one, again and again.

    python -m measuring.gloo RANKS TURNS

It prints a line for each turn: the seconds from when all ranks hold a group until all have reduced in the next one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from jdist.wire.processes import die_with_parent

TIMEOUT = timedelta(seconds=60)


def form_again(port: int, rank: int, ranks: int, turns: int) -> None:
    """One rank; rank 0 prints."""
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=TIMEOUT)

    def meet(where: str) -> None:
        store.set(f"{where}/{rank}", "")
        store.wait([f"{where}/{each}" for each in range(ranks)], TIMEOUT)

    for turn in range(turns + 1):  # the first one is left only
        meet(f"begin-{turn}")
        began = time.perf_counter()
        if turn:
            dist.destroy_process_group()
        world = dist.PrefixStore(str(turn), store)
        dist.init_process_group("gloo", store=world, rank=rank, world_size=ranks, timeout=TIMEOUT)
        dist.all_reduce(total := torch.ones(1))
        if total.item() != ranks:
            raise RuntimeError(f"rank {rank} of {ranks} got {total.item()} from its all_reduce")
        meet(f"end-{turn}")
        if turn and rank == 0:
            print(time.perf_counter() - began, flush=True)


def hold_store(report_to: int) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(report_to, str(store.port).encode())
    threading.Event().wait()


def fork(act: Callable[[], None]) -> int:
    """The pid of a child that does nothing else; this process never has threads, which no fork would survive."""
    child = os.fork()
    if child:
        return child
    die_with_parent()
    try:
        act()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    ranks, turns = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    reported, report_to = os.pipe()
    fork(partial(hold_store, report_to))  # ends with this process
    port = int(os.read(reported, 5))
    children = [fork(partial(form_again, port, rank, ranks, turns)) for rank in range(ranks)]
    if any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children):
        sys.exit(1)


if __name__ == "__main__":
    main()
