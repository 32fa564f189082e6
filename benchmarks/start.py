"""A start to the first all_reduce, against fresh interpreters that do the same; and Stop."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from measuring.frontend import FrontEnd, private_runtime
from measuring.table import MILLISECONDS, SECONDS, Table, pairs, timed

TURNS = 5
AIMS = {4: 1.0, 8: 0.7}
INTERRUPT_MS = 50.0
INTERRUPTS = 15

REDUCE = "%%dist\nt = torch.ones(1) * rank\ndist.all_reduce(t)\nt"
BY_ITSELF = """
import sys
import torch
import torch.distributed as dist

rank, world_size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
t = torch.ones(1) * rank
dist.all_reduce(t)
print(t, flush=True)
sys.stdin.read()
dist.destroy_process_group()
"""
SPIN = "%%dist\nprint('on my way', flush=True)\nwhile True:\n    n = 1"


def start_by_themselves(ranks: int) -> float:
    """Seconds from starting the interpreters until each has printed its result."""
    with tempfile.TemporaryDirectory(prefix="jdist-bench-") as folder:
        began = time.perf_counter()
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", BY_ITSELF, str(rank), str(ranks), str(Path(folder) / "meeting")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
        for process in processes:
            said = process.stdout.readline().decode().strip() if process.stdout is not None else ""
            if said != f"tensor([{sum(range(ranks))}.])":
                raise RuntimeError(f"an interpreter's all_reduce gave {said or 'nothing'}")
        seconds = time.perf_counter() - began
        for process in processes:
            process.communicate()
    return seconds


def start_cluster(notebook: FrontEnd, ranks: int) -> float:
    """Seconds of ``%dist start`` and of the first cell."""
    seconds = notebook.start(ranks) + notebook.run(REDUCE)
    notebook.stop()
    return seconds


def interrupt(kernel: FrontEnd, code: str) -> float:
    """Seconds from Stop until the cell has ended; it is stopped a moment after it has printed something."""
    name = kernel.send(code)
    kernel.wait(name, until=_has_said)
    time.sleep(0.1)  # what is measured is a loop under way, not its beginning
    began = time.perf_counter()
    kernel.interrupt()
    seconds = kernel.wait(name) - began
    kernel.reply(name)
    return seconds


def _has_said(message: dict[str, Any]) -> bool:
    return message["msg_type"] in ("stream", "display_data", "update_display_data") and "way" in str(message["content"])


def main() -> None:
    table = Table(
        "from %dist start to the first all_reduce; floor: as many fresh interpreters, started together, that import\n"
        "torch, form a gloo group and all_reduce"
    )
    with FrontEnd() as notebook:
        notebook.run("%load_ext jdist")
        for ranks, aim in AIMS.items():
            started = pairs(
                partial(start_cluster, notebook, ranks), partial(start_by_themselves, ranks), TURNS, warm_up=1
            )
            table.row(f"start, {ranks} ranks", started, SECONDS, most=aim)
    print("\nStop in a busy Python loop, until the cell has ended; floor: the same loop in a plain ipykernel")
    with FrontEnd() as plain, FrontEnd() as notebook:
        notebook.start(4)
        spinning = SPIN.removeprefix("%%dist\n")
        stopped = pairs(lambda: interrupt(notebook, SPIN), lambda: interrupt(plain, spinning), INTERRUPTS)
        table.row("interrupt, 4 ranks", stopped, MILLISECONDS)
        table.alone("interrupt, 4 ranks, by itself", stopped.figures, MILLISECONDS, most=INTERRUPT_MS)
        stop = timed(notebook.stop)
        table.alone("%dist stop, until every process is gone", [stop], MILLISECONDS)


if __name__ == "__main__":
    with private_runtime():
        main()
