"""A cluster on another host, through a login: cells, values, a broken connection, and what an idle one costs."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from measuring.frontend import IDLE, private_runtime
from measuring.login import HOST, Login
from measuring.slowly import Echo
from measuring.table import MILLISECONDS, SECONDS, Table, Unit, pairs

import jdist
from jdist.client.variables.carrier import Carrier
from jdist.core.messages.base import ProbeWire

TURNS = 30
PULLS = 8
BREAKS = 4
ONE_WAY = (0.0, 0.025, 0.1)
"""Seconds: 0, 50 and 200 ms there and back."""
CELL_AIM = 1.05
NBYTES = 100_000_000
PULL_AIM = 1 / 0.9
"""Of the time: at least 90 % of the bytes a second of `ssh HOST cat`."""
CUT = 20.0
BACK_AIM = 2.0
IDLE_SECONDS = 30.0
COUNT = "import time\nwhile True:\n    print(time.time(), flush=True)\n    time.sleep(0.05)"


def main() -> None:
    table = Table("a cluster of 2 ranks through a login on this machine, whose network takes its time")
    with jdist.start(2, backend="gloo", idle_timeout=IDLE) as near:
        for one_way in ONE_WAY:
            _cells(table, near, one_way)
    with Login() as login, jdist.start(2, backend="gloo", at=HOST, idle_timeout=IDLE) as far:
        _values(table, login, far)
        _breaks(table, login, far)
        before = login.wire.carried
        time.sleep(IDLE_SECONDS)
        a_minute = (login.wire.carried - before) * 60 / IDLE_SECONDS
        table.alone("bytes a minute while nothing happens", [a_minute], Unit("kB", 1e-3))


def _cells(table: Table, near: jdist.Cluster, one_way: float) -> None:
    echo = Echo(one_way)
    with Login(one_way) as _, jdist.start(2, backend="gloo", at=HOST, idle_timeout=IDLE) as far:
        cell = pairs(lambda: _cell(far), lambda: _cell(near) + echo.round_trip(), TURNS, 3)
        what = f"a cell, {2000 * one_way:.0f} ms away; here, and a round trip"
        table.row(what, cell, MILLISECONDS, most=CELL_AIM)


def _cell(cluster: jdist.Cluster) -> float:
    began = time.perf_counter()
    cluster.run("pass")
    return time.perf_counter() - began


def _values(table: Table, login: Login, far: jdist.Cluster) -> None:
    far.run(f"import torch\nx = torch.ones({NBYTES} // 4)")
    carrier = far.asynchronous.part(Carrier)
    carrier.probe = ProbeWire("/dev/shm/jdist-elsewhere", secrets.token_hex(32))  # as on another host
    with tempfile.NamedTemporaryFile(prefix="jdist-bench-") as file:
        Path(file.name).write_bytes(bytes(NBYTES))

        def pull() -> None:
            far.pull("x", ranks=[0])

        def cat() -> float:
            """Seconds from the first byte to the last, without the login."""
            with subprocess.Popen([*login.command, HOST, f"cat {file.name}"], stdout=subprocess.PIPE) as ssh:
                assert ssh.stdout is not None
                first = ssh.stdout.read(1)
                began = time.perf_counter()
                rest = ssh.stdout.read()
                assert len(first) + len(rest) == NBYTES
                return time.perf_counter() - began

        table.row("100 MB pulled; ssh HOST cat", pairs(pull, cat, PULLS), MILLISECONDS, most=PULL_AIM)


def _breaks(table: Table, login: Login, far: jdist.Cluster) -> None:
    """From the moment when the network is back until the first line of output arrives."""
    seconds = []
    run = far.run(COUNT, ranks=[0], background=True)
    arrived = threading.Event()
    run.watch(lambda _: arrived.set())
    for _ in range(BREAKS):
        login.wire.cut()
        time.sleep(CUT)
        arrived.clear()
        login.wire.mend()
        began = time.perf_counter()
        arrived.wait(60)
        seconds.append(time.perf_counter() - began)
        time.sleep(1.0)
    run.cancel()
    run.wait()
    table.alone(f"a line of output after the network was gone for {CUT:.0f} s", seconds, SECONDS, most=BACK_AIM)


if __name__ == "__main__":
    with private_runtime():
        main()
