"""Orphans: every child process dies with its parent, by the kernel's own hand where it can (Linux), and has a name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Orphans below this process become its children, so that it can reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """The kernel sends this process a signal when its parent dies, by default one that kills it."""
    _prctl(_PR_SET_PDEATHSIG, by)


def set_name(name: str) -> None:
    """What ``top`` and ``ps -o comm`` call this process: 15 characters. From any thread."""
    with contextlib.suppress(OSError):  # no /proc: the name is for people, and no more than that
        Path(f"/proc/self/task/{os.getpid()}/comm").write_bytes(name.encode()[:15])


def has_ended(pid: int) -> bool:
    """Whether a process of this host is gone; also while its parent has not waited for it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except FileNotFoundError:
        return os.path.exists("/proc/self/stat") or not _can_signal(pid)
    except OSError:
        return False


def pid_namespace() -> int:
    """In which processes have the numbers that this one sees: its inode's, 32 bits; 0 where there is none.

    Containers may share ``/tmp`` or ``/dev/shm`` and count their processes apart.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino & 0xFFFFFFFF
    except OSError:
        return 0


def _can_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
