"""The faults that a drill causes to a process's parent, as which its agent stands, and to its connections."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil

from support.waits import eventually

PARENT = """
import subprocess, sys, time
code = "from jdist.worker import faults; faults.{fault}; import time; time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code])
print(child.pid, flush=True)
time.sleep(60)
"""


def parent_of(fault: str) -> subprocess.Popen[str]:
    """A process whose child causes a fault to its agent, as which it stands."""
    return subprocess.Popen([sys.executable, "-c", PARENT.format(fault=fault)], stdout=subprocess.PIPE, text=True)


CUT = """
import socket
from jdist.worker import faults
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
far, _ = server.accept()
assert faults.cut_connections() == 2
assert near.recv(1) == b"" == far.recv(1)
again = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b"x")
assert again.recv(1) == b"x"
"""


def test_connections_are_cut_and_listeners_are_not() -> None:
    """In a process of its own: this one has connections to others, of pytest's."""
    subprocess.run([sys.executable, "-c", CUT], check=True, timeout=60)


def test_an_agent_is_stopped_for_a_while() -> None:
    with parent_of("stop_agent(1.0)") as parent:
        try:
            process = psutil.Process(parent.pid)
            assert eventually(lambda: process.status() == psutil.STATUS_STOPPED, 60)
            assert eventually(lambda: process.status() != psutil.STATUS_STOPPED, 60)
            assert parent.poll() is None
        finally:
            for child in psutil.Process(parent.pid).children():
                child.kill()
            parent.kill()


def test_an_agent_is_killed() -> None:
    with parent_of("kill_agent()") as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.wait(60) == -signal.SIGKILL
        psutil.Process(child).kill()
