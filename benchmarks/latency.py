"""A cell on distant nodes, against the same cell on nearby nodes plus one round trip of the network."""

from __future__ import annotations

import sys
import tempfile
import time

from measuring.frontend import IDLE, private_runtime
from measuring.slowly import Echo, SlowLauncher, register
from measuring.table import MILLISECONDS, Table, pairs

import jdist

TURNS = 40
ONE_WAY = 0.025
"""Seconds: 50 ms there and back."""
AIM = 1.05


def main() -> None:
    table = Table("one cell on 2 nodes of 2 ranks, 50 ms away; floor: the same 0 ms away, and one round trip")
    SlowLauncher.delay = ONE_WAY
    echo = Echo(ONE_WAY)
    with tempfile.TemporaryDirectory(prefix="jdist-bench-") as folder:
        sys.path.insert(0, folder)
        slow = register(folder)
        with (
            jdist.start(2, 2, backend="gloo", idle_timeout=IDLE) as near,
            jdist.start(2, 2, backend="gloo", idle_timeout=IDLE, launcher=slow) as far,
        ):
            for what, code in {"an empty cell": "pass", "a cell that prints": "print(rank)"}.items():
                cell = pairs(lambda c=code: _cell(far, c), lambda c=code: _cell(near, c) + echo.round_trip(), TURNS, 3)
                table.row(what, cell, MILLISECONDS, most=AIM)


def _cell(cluster: jdist.Cluster, code: str) -> float:
    began = time.perf_counter()
    cluster.run(code)
    return time.perf_counter() - began


if __name__ == "__main__":
    with private_runtime():
        main()
