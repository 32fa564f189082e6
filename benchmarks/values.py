"""A large tensor from a rank into this process, against one copy of it on the same path."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring.frontend import IDLE, private_runtime
from measuring.table import MILLISECONDS, Table, cannot_run, pairs

import jdist
from jdist.client.attachment import Attachment
from jdist.client.threads import bridge
from jdist.client.variables.carrier import Carrier
from jdist.core.messages.base import ProbeWire

TURNS = 15
NBYTES = 100_000_000
SHARED_AIM = 3.0
TCP_AIM = 1 / 0.7
"""Of the time: at least 70 % of the plain socket's bytes a second."""

SENDER = """
import socket, sys
import numpy as np
data = np.full(int(sys.argv[2]), 7, np.uint8)
for line in sys.stdin:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
        sock.sendall(data)
"""


class Elsewhere(Carrier):
    """A carrier that no rank finds on its own host, so that values pass through the data port.

    With ``beside_controller`` it still shares the controller's host, as a notebook does that started a cluster on other
    nodes; without, it is on a third one.
    """

    def __init__(self, attachment: Attachment, *, beside_controller: bool):
        super().__init__(attachment)
        self._beside = self.probe if beside_controller else None
        self.probe = ProbeWire(f"/dev/shm/jdist-{self._cluster}-{secrets.token_hex(16)}", secrets.token_hex(32))

    async def _receive(self, *args: Any) -> list[memoryview]:
        unseen = self.probe
        if self._beside is not None:
            self.probe = self._beside
        try:
            return await super()._receive(*args)
        finally:
            self.probe = unseen


def copy_into_shared_memory(data: memoryview) -> float:
    """Seconds of one copy into a new file in shared memory, which is then unlinked."""
    with tempfile.TemporaryFile(dir="/dev/shm", buffering=0) as file:
        began = time.perf_counter()
        written = 0
        while written < len(data):
            written += file.write(data[written:])
        return time.perf_counter() - began


def receive(server: socket.socket, sender: subprocess.Popen[str], into: memoryview | None) -> float:
    """Seconds in which another process's bytes arrive over a plain connection, in new memory if none is given."""
    if sender.stdin is None:
        raise RuntimeError("the sender has no standard input")
    began = time.perf_counter()
    into = memoryview(np.empty(NBYTES, np.uint8)).cast("B") if into is None else into
    sender.stdin.write("go\n")
    sender.stdin.flush()
    connection, _ = server.accept()
    with connection:
        got = 0
        while got < len(into):
            got += connection.recv_into(into[got:])
    return time.perf_counter() - began


def main() -> None:
    if not os.path.isdir("/dev/shm"):
        cannot_run("this system has no /dev/shm")
    table = Table(f"{NBYTES // 10**6} MB tensor of one rank into this process")
    data = memoryview(np.full(NBYTES, 7, np.uint8)).cast("B")
    code = f"x = torch.arange({NBYTES // 4}, dtype=torch.int32)"
    with jdist.start(nproc_per_node=2, idle_timeout=IDLE) as cluster:
        cluster.run(code)
        pull_shared(cluster, table, data)
        pull_tcp(cluster, table)


def pull_shared(cluster: jdist.Cluster, table: Table, data: memoryview) -> None:
    def pull() -> float:
        began = time.perf_counter()
        value = cluster.pull("x", ranks=[0])[0]
        seconds = time.perf_counter() - began
        _check(value)
        return seconds

    print("floor: one copy of as many bytes into a new file in /dev/shm")
    table.row("pull, same host", pairs(pull, lambda: copy_into_shared_memory(data), TURNS), MILLISECONDS, SHARED_AIM)


def pull_tcp(cluster: jdist.Cluster, table: Table) -> None:
    used = memoryview(bytearray(NBYTES))
    print(
        "floor: as many bytes over one plain connection on loopback, from a process that has them in memory\n"
        "into memory that was used before, or into new memory, as pulled values are"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = subprocess.Popen(
            [sys.executable, "-c", SENDER, str(server.getsockname()[1]), str(NBYTES)], stdin=subprocess.PIPE, text=True
        )
        try:
            for beside, where in ((True, "beside the controller"), (False, "on a third host")):
                far = Elsewhere(cluster.asynchronous.attachment, beside_controller=beside)
                for what, into in (("used memory", used), ("new memory", None)):
                    measured = pairs(partial(_pull_by, far), partial(receive, server, sender, into), TURNS, warm_up=2)
                    table.row(f"{where}; floor into {what}", measured, MILLISECONDS, TCP_AIM if beside else None)
                far.close()
        finally:
            sender.communicate()


def _pull_by(carrier: Carrier) -> float:
    began = time.perf_counter()
    found = asyncio.run_coroutine_threadsafe(carrier.pull(("x",), (0,)), bridge().loop).result()
    seconds = time.perf_counter() - began
    _check(found["x"][0])
    return seconds


def _check(value: torch.Tensor) -> None:
    if value.nbytes != NBYTES or int(value[-1]) != len(value) - 1:
        raise RuntimeError("another value arrived")


if __name__ == "__main__":
    with private_runtime():
        main()
