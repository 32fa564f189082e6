"""Faults that a drill causes on a rank, to see what becomes of it. Called by the drill's cells only.

Each affects this process, or its node's agent, and nothing else on the machine.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from jdist.worker.groups.gloo import connections


def cause_fault(kind: str, *arguments: float) -> Any:
    """Call one of the functions below by its name; returns what it returns."""
    return _FAULTS[kind](*arguments)


def cut_connections() -> int:
    """Shut down each TCP connection of this process, as when its node's network breaks; returns how many there were."""
    count = 0
    for sock, _, _ in connections():
        with contextlib.suppress(OSError):  # already shut down
            sock.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def stop_agent(seconds: float) -> None:
    """Stop this node's agent for so many seconds: to the controller, the node is out of reach."""
    agent = _agent()
    threading.Timer(seconds, os.kill, (agent, signal.SIGCONT)).start()
    os.kill(agent, signal.SIGSTOP)


def kill_agent() -> None:
    """End this node's agent, and with it the node's ranks."""
    os.kill(_agent(), signal.SIGKILL)


def _agent() -> int:
    parent = os.getppid()
    if parent <= 1:
        raise RuntimeError("this rank's agent has ended already")
    return parent


_FAULTS: dict[str, Callable[..., Any]] = {
    "cut_connections": cut_connections,
    "stop_agent": stop_agent,
    "kill_agent": kill_agent,
}
