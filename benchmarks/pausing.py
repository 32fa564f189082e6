"""A pause of four busy ranks, and a cell in their paused frames."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from measuring.frontend import IDLE, private_runtime
from measuring.table import MILLISECONDS, Table, pairs

import jdist

RANKS = 4
TURNS = 30
PAUSE_MS = 50.0
WAIT = 30.0

BUSY = "number = 0\nwhile True:\n    number += 1"
BY_ITSELF = f"""
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"x"))
print("ready", flush=True)
{BUSY}
"""
"""Answers a signal by one byte, which a pause can do no faster."""


class Processes:
    """As many plain interpreters in the same loop."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", BY_ITSELF]
        self._all = [subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) for _ in range(RANKS)]
        for process in self._all:
            assert process.stdout is not None
            process.stdout.readline()

    def signal(self) -> None:
        """Signal all, and wait until all have answered."""
        for process in self._all:
            process.send_signal(signal.SIGUSR1)
        for process in self._all:
            assert process.stdout is not None
            os.read(process.stdout.fileno(), 1)

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.communicate()


def pause(cluster: jdist.Cluster, run: jdist.CellRun) -> float:
    """Seconds from the request until this process knows of all ranks that they are paused."""
    began = time.perf_counter()
    cluster.pause()
    while len(run.paused) < RANKS:
        if time.perf_counter() - began > WAIT:
            raise RuntimeError(f"after {WAIT:.0f} s only ranks {sorted(run.paused)} were paused")
        time.sleep(0.0005)
    seconds = time.perf_counter() - began
    cluster.resume()
    return seconds


def main() -> None:
    table = Table(
        f"a pause of {RANKS} busy ranks, until the client knows of each; floor: as many plain interpreters in the\n"
        "same loop, each of which answers a signal"
    )
    processes = Processes()
    try:
        with jdist.start(2, 2, backend="gloo", idle_timeout=IDLE) as cluster:
            run = cluster.run(BUSY, background=True)
            measured = pairs(lambda: pause(cluster, run), processes.signal, TURNS, warm_up=3)
            table.row(f"pause, {RANKS} ranks", measured, MILLISECONDS)
            table.alone(f"pause, {RANKS} ranks, by itself", measured.figures, MILLISECONDS, most=PAUSE_MS)
            cluster.interrupt()
            run.wait(WAIT)
    finally:
        processes.end()
    print("\nAn empty cell; floor: an empty cell on idle ranks")
    with (
        jdist.start(2, 2, backend="gloo", idle_timeout=IDLE) as paused,
        jdist.start(2, 2, backend="gloo", idle_timeout=IDLE) as idle,
    ):
        run = paused.run("breakpoint()", background=True)
        while len(run.paused) < RANKS:
            if run.wait(0.01):
                run.check()
        table.row("a cell in paused frames", pairs(lambda: _cell(paused), lambda: _cell(idle), TURNS), MILLISECONDS)
        paused.resume()
        run.wait(WAIT)


def _cell(cluster: jdist.Cluster) -> None:
    cluster.run("pass")


if __name__ == "__main__":
    with private_runtime():
        main()
