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
_NAME = re.compile(r"jdist-([0-9a-f]{12})-([0-9a-f]+)-(\d+)(?:-[0-9a-f]{8})?")
_CODE = re.compile(r"jdist-([0-9a-f]{12})-code")


def make(cluster: str) -> Path:
    """Make this process's directory for a cluster, mode 0700, and remove those of processes that have ended."""
    _remove(None)
    path = _base() / f"jdist-{cluster}-{pid_namespace():x}-{os.getpid()}"
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # another user owns that name
        path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        path.mkdir(mode=0o700)
    return path


def sweep(cluster: str) -> None:
    """Remove the directories of dead agents of a cluster on this host."""
    _remove(cluster)


def code_directory(cluster: str) -> Path:
    """The folder for a cluster's synced code on this host. Its users hold its :func:`lock_file` shared."""
    return _base() / f"jdist-{cluster}-code"


def lock_file(directory: Path) -> Path:
    """The lock file of a folder for code."""
    return directory / ".jdist-lock"


def _base() -> Path:
    path = tempfile.gettempdir()
    return Path(path if len(path) < _LONGEST else "/tmp")


def _remove(cluster: str | None) -> None:
    here = f"{pid_namespace():x}"  # processes of other containers cannot be seen
    for path in _base().glob("jdist-*-*-*"):
        m = _NAME.fullmatch(path.name)
        if m is None or cluster not in (None, m[1]) or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):  # another agent may be removing it, too
            is_mine = path.lstat().st_uid == os.getuid() and m[2] == here
            if is_mine and has_ended(int(m[3])):
                shutil.rmtree(path, ignore_errors=True)
    for path in _base().glob("jdist-*-code"):
        m = _CODE.fullmatch(path.name)
        if m is not None and cluster in (None, m[1]) and not path.is_symlink():
            with contextlib.suppress(OSError):  # another user's, in use, or being made or removed
                _remove_code(path)


def _remove_code(path: Path) -> None:
    """Remove a folder for code that is not in use. Raises OSError if it is."""
    if path.stat().st_uid != os.getuid():
        return
    with open(lock_file(path), "rb") as lock:  # without a lock file it is just being made
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
