"""Faults that a drill causes on a rank, to see what becomes of it. Called by the drill's cells only.

Each affects this process, or its node's agent, and nothing else on the machine.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jdist.wire.cgroups import MemoryCgroups
from jdist.worker.groups.gloo import connections

_LIMIT = 256 << 20
_CHUNK = 16 << 20
_FILLED = 4 * _LIMIT  # Bytes after which a limit that has not ended the process is none.
_PREFIX = "jdist-drill-"
_LIMIT_FILES = {"1": "memory.limit_in_bytes", "2": "memory.max"}
_SWAP_FILES = {"1": "memory.memsw.limit_in_bytes", "2": "memory.swap.max"}


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


def limit_memory() -> str:
    """Move this process into a memory cgroup of its own, with a small limit; returns why that cannot be done, or ""."""
    reason = "there is no memory cgroup here"
    for version, folder in _candidates():
        own = folder / f"{_PREFIX}{os.getpid()}"
        try:
            own.mkdir()
        except OSError as e:
            reason = f"{folder}: {e.strerror}"
            continue
        try:
            (own / _LIMIT_FILES[version]).write_text(str(_LIMIT))
            with contextlib.suppress(OSError):  # no swap is counted here
                (own / _SWAP_FILES[version]).write_text("0" if version == "2" else str(_LIMIT))
            (own / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as e:
            reason = f"{own}: {e.strerror}"
            with contextlib.suppress(OSError):
                own.rmdir()
            continue
        return ""
    return reason


def _candidates() -> Iterator[tuple[str, Path]]:
    """This process's memory cgroup and those above, by version. In version 2, only one without processes can divide."""
    for cgroup in MemoryCgroups().of(os.getpid()):
        folders = (cgroup.folder, *cgroup.folder.parents)
        yield from ((cgroup.version, each) for each in folders if each.is_relative_to(cgroup.mount))


def fill_memory() -> str:
    """Take memory until the kernel ends this process; returns a reason if it does not."""
    held = [bytearray(os.urandom(1)) * _CHUNK for _ in range(_FILLED // _CHUNK)]
    return f"the kernel here does not enforce a memory cgroup's limit: {len(held) * _CHUNK >> 20} MiB were taken"


def remove_limits() -> None:
    """Leave the limited cgroup, and remove those that this node's ranks have made and left."""
    for _, folder in _candidates():
        for own in folder.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if str(os.getpid()) in (own / "cgroup.procs").read_text().split():
                    (folder / "cgroup.procs").write_text(str(os.getpid()))
            with contextlib.suppress(OSError):  # another rank is in it
                own.rmdir()


_FAULTS: dict[str, Callable[..., Any]] = {
    "cut_connections": cut_connections,
    "stop_agent": stop_agent,
    "kill_agent": kill_agent,
    "limit_memory": limit_memory,
    "fill_memory": fill_memory,
    "remove_limits": remove_limits,
}
