"""Directories: an agent's private one for sockets and logs, and the one for synced code; dead agents' are removed."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from pathlib import Path

from jdist.wire.processes import has_ended, pid_namespace

_LONGEST = 42  # Characters of the temporary directory's path: a Unix socket's path may have 107.
_NAME = re.compile(
    r"jdist-(?P<cluster>[0-9a-f]{12})-(?:code(?:\d+)?|(?P<namespace>[0-9a-f]+)-(?P<pid>\d+)(?:-[0-9a-f]{8})?)"
)


def make(cluster: str) -> Path:
    """Make this process's directory for a cluster, mode 0700, and remove those of processes that have ended."""
    sweep()
    path = _base() / f"jdist-{cluster}-{pid_namespace():x}-{os.getpid()}"
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # another user owns that name
        path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        path.mkdir(mode=0o700)
    return path


def code_directory(cluster: str, number: int = 0) -> Path:
    """The folder for a cluster's synced code on this host. Its users hold its :func:`lock_file` shared.

    ``number``: of another name, where another user has taken those before it.
    """
    return _base() / f"jdist-{cluster}-code{number or ''}"


def lock_file(directory: Path) -> Path:
    """The lock file of a folder for code."""
    return directory / ".jdist-lock"


def _base() -> Path:
    path = tempfile.gettempdir()
    return Path(path if len(path) < _LONGEST else "/tmp")


def sweep(cluster: str = "") -> None:
    """Remove the directories of dead agents of a cluster (without a name: of all) on this host."""
    here = f"{pid_namespace():x}"  # processes of other containers cannot be seen
    for path in _base().glob("jdist-*-*"):
        found = _NAME.fullmatch(path.name)
        if found is None or cluster not in ("", found["cluster"]) or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError):  # another process is removing it, too, or the code is in use or being made
            if path.lstat().st_uid != os.getuid():
                continue
            if found["pid"] is None:
                with open(lock_file(path), "rb") as lock:  # without a lock file it is just being made
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            elif found["namespace"] == here and has_ended(int(found["pid"])):
                shutil.rmtree(path, ignore_errors=True)
