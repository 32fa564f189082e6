"""Fuzz: rubbish at every socket of a real cluster for as long as asked; it must go on working.

    python -m support.fuzz.fuzz --seconds 600 --seed 7

Prints what was said by whom, and the controller's memory. Ends with an error, and the seed, where the cluster does not
answer a cell any more, the controller is another process than before, or its log tells of a fault of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections import Counter
from typing import Any

import psutil

import jdist
from jdist.client import find
from jdist.wire.transport.invitations import JoinLine
from support.fuzz.folding import fold
from support.fuzz.wire import Fuzz

ROUNDS = 200
"""Between two checks that the cluster still works."""
CELL = "import torch; _f = torch.ones(1); dist.all_reduce(_f); _f.item()"
OWN_FAULTS = ("could not take", "Traceback", "never retrieved")


def attack(cluster: jdist.Cluster, seed: int, rounds: int = ROUNDS) -> Counter[str]:
    """One bout; what was said by whom. Raises AssertionError when the cluster is not what it was."""
    connection = find.connections()[cluster.name]
    line = JoinLine.decode(cluster.invite())
    size = cluster.world_size
    fuzz = Fuzz(connection, line, random.Random(seed))
    asyncio.run(fuzz.run(rounds))
    assert cluster.run(CELL, timeout=60).values == dict.fromkeys(range(size), float(size)), f"seed {seed}"
    assert psutil.Process(connection.pid).is_running(), f"seed {seed}"
    assert find.connections()[cluster.name].pid == connection.pid, f"seed {seed}"
    log = (find.directory() / f"jdist-{cluster.name}.log").read_text(errors="replace")
    own = [text for text in log.splitlines() if any(word in text for word in OWN_FAULTS)]
    assert not own, f"seed {seed}: {own[:3]}"
    return Counter(fuzz.sent)


def memory(cluster: jdist.Cluster) -> int:
    """The controller's, in MiB."""
    pid = find.connections()[cluster.name].pid
    return int(psutil.Process(pid).memory_info().rss) >> 20


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options: Any = parser.parse_args(argv)
    os.environ.setdefault("JUPYTER_RUNTIME_DIR", tempfile.mkdtemp(prefix="jdist-fuzz-"))
    end = time.monotonic() + options.seconds
    total: Counter[str] = Counter()
    with jdist.start(nproc_per_node=2, backend="gloo", name="fuzz") as cluster:
        seed = options.seed
        while time.monotonic() < end:
            total += attack(cluster, seed)
            total["the state, in process"] += fold(random.Random(seed), 2)
            print(f"seed {seed}: {sum(total.values())} said, controller {memory(cluster)} MiB", flush=True)
            seed += 1
    for who, count in total.most_common():
        print(f"{count:9,}  {who}")


if __name__ == "__main__":
    main()
